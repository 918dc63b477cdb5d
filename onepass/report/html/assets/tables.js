// Tables that are sorted by their headers and filtered by what stands above them.

const ROWS_AT_ONCE = 200;

// `columns`: label, value(row) to sort by, and cell(row), an array of what to show.
function sortable({ caption, columns, rows, sorted }) {
  const first = columns.findIndex((one) => one.label === sorted?.column);
  const state = { column: first < 0 ? null : first, descending: sorted?.descending ?? false, shown: rows, room: ROWS_AT_ONCE };
  const headers = columns.map((column, place) => header(column, () => {
    state.descending = state.column === place ? !state.descending : Boolean(column.number);
    state.column = place;
    refresh();
  }));
  const body = make("tbody", { role: "rowgroup" });
  const status = make("p", { class: "status", role: "status" });
  const more = button("", () => { state.room += 5 * ROWS_AT_ONCE; refresh(); });
  more.className = "more";
  const table = make("table", { class: "cards", role: "table" }, make("caption", {}, caption),
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...headers)), body);

  function refresh() {
    const ordered = state.column === null ? state.shown : inOrder(state.shown, columns[state.column].value, state.descending);
    headers.forEach((one, place) => one.setAttribute("aria-sort",
      place !== state.column ? "none" : state.descending ? "descending" : "ascending"));
    body.replaceChildren(...ordered.slice(0, state.room).map((row) => line(row, columns)));
    const hidden = Math.max(0, ordered.length - state.room);
    status.textContent = `${ordered.length} of ${rows.length} shown${hidden ? `, the first ${state.room} below` : ""}`;
    more.textContent = `Show ${Math.min(hidden, 5 * ROWS_AT_ONCE)} more`;
    more.hidden = !hidden;
  }

  refresh();
  return {
    element: make("div", {}, make("div", { class: "wide" }, table), more),
    status,
    keep(test) { state.shown = rows.filter(test); refresh(); },
  };
}

function header(column, pressed) {
  return make("th", { scope: "col", role: "columnheader", "aria-sort": "none", class: column.number ? "number" : "" },
    button(column.label, pressed));
}

function line(row, columns) {
  return make("tr", { role: "row" }, ...columns.map((column) => {
    const cell = make("td", { role: "cell", class: column.number ? "number" : "", "data-label": column.label }, ...column.cell(row));
    column.adorn?.(cell, row);
    return cell;
  }));
}

// Numbers by their size, words by the alphabet; what is missing comes last either way.
function inOrder(rows, value, descending) {
  const sign = descending ? -1 : 1;
  const missing = (one) => one === null || one === undefined || one === "";
  const compare = (a, b) => {
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
    if (isNumber(a) && isNumber(b)) return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };
  return rows.map((row) => [value(row), row]).sort((a, b) => compare(a[0], b[0])).map((pair) => pair[1]);
}

// Above a table: words to search for, and choices of exact values. `picked`: label and value(row).
function filters(table, rows, text, picked) {
  const wanted = { words: [], exact: new Map() };
  const apply = () => table.keep((row) => {
    const all = text(row).toLowerCase();
    return wanted.words.every((one) => all.includes(one))
      && [...wanted.exact].every(([value, one]) => String(value(row)) === one);
  });
  const search = make("input", { type: "search", placeholder: "words, in any order", autocomplete: "off" });
  search.addEventListener("input", () => {
    wanted.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    apply();
  });
  const choices = picked.map(({ label, value }) => {
    const found = [...new Set(rows.map((row) => String(value(row))))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    if (found.length < 2) return null;
    return choice(label, [["", "all"], ...found.map((one, place) => [String(place), one])], (chosen) => {
      if (chosen === "") wanted.exact.delete(value);
      else wanted.exact.set(value, found[Number(chosen)]);
      apply();
    }).element;
  });
  return make("div", { class: "controls" }, make("label", {}, "Filter", search), ...choices, table.status);
}

// Figures: drawn for the width that there is, and each with its numbers as a table below it.

const COLOURS = 10;
const MARGIN = { left: 46, right: 14, top: 26, bottom: 40 };

// A figure that is drawn again when its width changes. `drawn(width)` gives the SVG.
function figure(title, note, drawn, table) {
  const place = make("div");
  const numbers = table && make("details", {}, make("summary", {}, "The numbers"));
  const made = make("figure", {}, make("figcaption", {}, note), place, numbers);
  numbers?.addEventListener("toggle", () => {
    if (numbers.open && numbers.children.length === 1) numbers.append(make("div", { class: "wide" }, table()));
  });
  let last = 0;
  const paint = (width) => {
    if (width < 40 || Math.abs(width - last) < 2) return;
    last = width;
    const picture = drawn(width);
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", `${title}. ${note}`);
    place.replaceChildren(picture);
  };
  new ResizeObserver(() => paint(place.clientWidth)).observe(place);
  return made;
}

function canvas(width, height) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}` });
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const all = Array.from({ length: 2 * count + 2 }, (_, k) => (first + k) * step);
  return all.filter((one) => one <= high + 1e-9 * step);
}

function logarithmicTicks(low, high) {
  const powers = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) powers.push(p);
  const steps = powers.length > 4 ? [1] : powers.length > 2 ? [1, 3] : [1, 2, 5];
  return powers.flatMap((p) => steps.map((one) => one * 10 ** p)).filter((one) => one >= low && one <= high);
}

function extent(values, otherwise) {
  const known = values.filter(isNumber);
  if (!known.length) return otherwise;
  let [low, high] = [known[0], known[0]];
  for (const one of known) [low, high] = [Math.min(low, one), Math.max(high, one)];
  return low === high ? [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1] : [low, high];
}

// The frame with its axes, and how values become places in it.
function axes(width, height, x, y) {
  const picture = canvas(width, height);
  const inner = { right: width - MARGIN.right, bottom: height - MARGIN.bottom };
  const on = x.logarithmic ? Math.log10 : (value) => value;
  const [left, right] = x.range.map(on);
  const across = (value) => MARGIN.left + ((on(value) - left) / (right - left)) * (inner.right - MARGIN.left);
  const up = (value) => inner.bottom - ((value - y.range[0]) / (y.range[1] - y.range[0])) * (inner.bottom - MARGIN.top);
  for (const value of ticks(...y.range, 5)) {
    picture.append(
      draw("line", { class: "axis", x1: MARGIN.left, x2: inner.right, y1: up(value), y2: up(value) }),
      draw("text", { class: "quiet", x: MARGIN.left - 6, y: up(value) + 4, "text-anchor": "end" }, short(value)));
  }
  const places = x.logarithmic ? logarithmicTicks(...x.range) : ticks(...x.range, Math.max(2, Math.floor(width / 90)));
  const below = x.whole ? places.filter(Number.isInteger) : places;
  for (const value of below) {
    picture.append(draw("text", { class: "quiet", x: across(value), y: inner.bottom + 16, "text-anchor": "middle" }, x.shown?.(value) ?? short(value)));
  }
  picture.append(
    draw("text", { class: "quiet", x: inner.right, y: height - 6, "text-anchor": "end" }, x.label),
    draw("text", { class: "quiet", x: 0, y: 12 }, y.label));
  return { picture, across, up, inner };
}

// Lines over x. A series has a name, points [x, y, deviation?], a colour, and may be dashed. A
// level of y is drawn across, and is in sight wherever the lines are.
function lineChart({ title, note, series, x, y, marks = [] }) {
  const points = series.flatMap((one) => one.points);
  const range = extent(points.map((one) => one[0]), [0, 1]);
  const level = isNumber(y.level) ? [y.level] : [];
  const [low, high] = extent([...points.map((one) => one[1]), ...level], [0, 1]);
  const heights = y.range ?? [low - (high - low) * 0.04, high + (high - low) * 0.04];
  const drawn = (width) => {
    const height = Math.round(Math.min(380, Math.max(230, width * 0.45)));
    const { picture, across, up, inner } = axes(width, height, { ...x, range }, { range: heights, label: y.label });
    for (const mark of marks.filter((one) => one < range[1])) {
      picture.append(draw("line", { class: "boundary", x1: across(mark), x2: across(mark), y1: MARGIN.top, y2: inner.bottom }));
    }
    for (const one of level) {
      picture.append(draw("line", { class: "level", x1: MARGIN.left, x2: inner.right, y1: up(one), y2: up(one) }));
    }
    for (const one of series) picture.append(...lineOf(one, across, up, x, y));
    return picture;
  };
  return figure(title, note, drawn, () => numbersOf(series, x));
}

function lineOf(series, across, up, x, y) {
  const known = series.points.filter((one) => isNumber(one[1]));
  const path = (side) => known.map((one) => `${across(one[0]).toFixed(1)},${up(one[1] + side * (one[2] ?? 0)).toFixed(1)}`);
  const made = [];
  if (known.some((one) => one[2])) {
    made.push(draw("polygon", { class: `band f${series.colour % COLOURS}`, points: [...path(1), ...path(-1).reverse()].join(" ") }));
  }
  const dashed = series.dashed || series.colour >= COLOURS ? " dashed" : "";
  made.push(draw("polyline", { class: `line s${series.colour % COLOURS}${dashed}`, points: path(0).join(" ") }));
  for (const one of known) {
    const told = `${series.name}: ${fixed(one[1], y.digits)}${one[2] ? ` \u00b1 ${fixed(one[2], y.digits)}` : ""} (${x.label} ${one[0]})`;
    const alone = known.length === 1 ? `f${series.colour % COLOURS}` : "spot";
    made.push(draw("circle", { class: alone, cx: across(one[0]), cy: up(one[1]), r: 5 }, draw("title", {}, told)));
  }
  return made;
}

function numbersOf(series, x) {
  const places = [...new Set(series.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
  const found = series.map((one) => new Map(one.points.map((point) => [point[0], point[1]])));
  return plainTable([x.label, ...series.map((one) => one.name)],
    places.map((place) => [String(place), ...found.map((values) => (values.has(place) ? fixed(values.get(place), 2) : ""))]));
}

function plainTable(header, rows) {
  return make("table", {},
    make("thead", {}, make("tr", {}, ...header.map((one) => make("th", { scope: "col" }, word(one))))),
    make("tbody", {}, ...rows.map(([first, ...others]) => make("tr", {},
      make("th", { scope: "row" }, word(first)), ...others.map((one) => make("td", { class: "number" }, one))))));
}

// Rows and columns of percentages as colours. `columns` and `rows` are their names.
function heatMap({ title, note, rows, columns, values, rowsAre, columnsAre }) {
  const longest = Math.max(...rows.map((one) => one.length));
  const drawn = (width) => {
    const left = Math.min(Math.max(24, 8 + longest * 6.5), width * 0.3, 150);
    const letters = Math.max(2, Math.floor((left - 8) / 6.5));
    const tall = rows.length > 60 ? 12 : rows.length > 24 ? 16 : 26;
    const wide = Math.min((width - left) / columns.length, 64);
    const picture = canvas(width, 40 + tall * rows.length);
    picture.append(draw("text", { class: "quiet", x: left, y: 12 }, columnsAre));
    columns.forEach((name, j) => {
      if (wide >= 20 || j % 5 === 0) picture.append(draw("text", { class: "quiet", x: left + wide * (j + 0.5), y: 30, "text-anchor": "middle" }, name));
    });
    rows.forEach((name, i) => {
      const shown = name.length > letters ? `${name.slice(0, letters - 1)}\u2026` : name;
      picture.append(draw("text", { class: "quiet", x: left - 6, y: 36 + tall * (i + 0.5) + 4, "text-anchor": "end" }, shown, draw("title", {}, name)));
      columns.forEach((column, j) => picture.append(...heatCell(values[i]?.[j], left + wide * j, 36 + tall * i, wide, tall,
        `${rowsAre} ${name}, ${columnsAre} ${column}`)));
    });
    return picture;
  };
  return figure(title, note, drawn, () => plainTable([`${rowsAre} \\ ${columnsAre}`, ...columns],
    rows.map((name, i) => [name, ...columns.map((_, j) => (isNumber(values[i]?.[j]) ? fixed(values[i][j]) : ""))])));
}

function heatCell(value, x, y, width, height, told) {
  const known = isNumber(value);
  const cell = draw("rect", { class: known ? "cell" : "cell none", x, y, width, height },
    draw("title", {}, known ? `${told}: ${fixed(value)} %` : `${told}: nothing`));
  if (!known) return [cell];
  const share = Math.min(100, Math.max(0, value));
  cell.style.fill = `color-mix(in oklab, var(--heat-high) ${share.toFixed(0)}%, var(--heat-low))`;
  if (width < 27 || height < 16) return [cell];
  return [cell, draw("text", { class: share > 55 ? "on-dark" : "", x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle", "pointer-events": "none" }, fixed(value, 0))];
}

// Dots with names beside them, as far as there is room.
function scatter({ title, note, dots, x, y }) {
  const [low, high] = extent(dots.map((one) => one.x), [1, 10]);
  const logarithmic = low > 0 && high / low > 12;
  const range = logarithmic ? [low / 1.5, high * 1.5] : [Math.min(0, low), high * 1.1];
  const drawn = (width) => {
    const height = Math.round(Math.min(420, Math.max(260, width * 0.5)));
    const { picture, across, up, inner } = axes(width, height, { ...x, range, logarithmic }, y);
    const taken = dots.map((one) => box(across(one.x), up(one.y), 10, 10));
    for (const one of dots) {
      const told = `${one.name}: ${fixed(one.y)} %, ${x.shown(one.x)}`;
      picture.append(draw("circle", { class: `f${one.colour % COLOURS}`, cx: across(one.x), cy: up(one.y), r: 5 }, draw("title", {}, told)));
      const label = labelBeside(one, across(one.x), up(one.y), taken, inner.right);
      if (label) picture.append(label);
    }
    return picture;
  };
  return figure(title, note, drawn, () => plainTable(["", x.label, y.label],
    dots.map((one) => [one.name, x.shown(one.x), fixed(one.y)])));
}

function box(x, y, width, height) {
  return { left: x - width / 2, right: x + width / 2, top: y - height / 2, bottom: y + height / 2 };
}

function labelBeside(dot, x, y, taken, right) {
  const text = dot.name.length > 28 ? `${dot.name.slice(0, 27)}\u2026` : dot.name;
  const width = text.length * 6.6;
  const places = [[x + 9 + width / 2, y], [x - 9 - width / 2, y], [x, y - 14], [x, y + 14]];
  for (const [cx, cy] of places) {
    const wanted = box(cx, cy, width, 13);
    const free = wanted.left > MARGIN.left && wanted.right < right && wanted.top > 0
      && !taken.some((one) => one.left < wanted.right && one.right > wanted.left && one.top < wanted.bottom && one.bottom > wanted.top);
    if (free) {
      taken.push(wanted);
      return draw("text", { x: cx, y: cy + 4, "text-anchor": "middle" }, text);
    }
  }
  return null;
}

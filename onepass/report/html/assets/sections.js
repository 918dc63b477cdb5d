// The page, section by section.

const rows = data.rows.map((row, place) => ({ ...row, place, setting: [row.dataset, `memory ${row.memory}`, row.protocol].filter(Boolean).join(", ") }));
const isReference = (row) => row.tasks === 1;
const kept = (bytes) => (bytes ? `${short(bytes)}B` : MISSING);
const several = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

// Settings that are comparable: a dataset, a memory, and what else decides what is learned and tested.
// What keeps nothing belongs to each memory.
// The rows of one come by their accuracy. A method with its choices, a series, has one colour in all settings.
function settings() {
  const found = new Map();
  const colours = new Map();
  const colourOf = (series) => colours.get(series) ?? colours.set(series, colours.size).get(series);
  const alike = (a, b) => a.dataset === b.dataset && a.protocol === b.protocol;
  for (const row of rows.filter((one) => one.memory)) found.set(row.setting, row);
  for (const row of rows) if (![...found.values()].some((one) => alike(one, row))) found.set(row.setting, row);
  return [...found].map(([name, one]) => {
    const inside = rows.filter((row) => alike(row, one) && (row.memory === one.memory || !row.memory));
    const ordered = inOrder(inside, (row) => row.accuracy[0], true);
    return { name, rows: ordered.map((row) => ({ ...row, colour: colourOf(row.series) })) };
  });
}

function introduce() {
  const finished = data.runs.filter((one) => one.state === "finished").length;
  const from = data.sources.join(", ");
  document.getElementById("about").append(`${several(finished, "finished run")} in `, word(from));
  document.getElementById("made").append(`Made ${data.made.replace("T", " ").replace("+00:00", " UTC")} by onepass ${data.onepass}. Nothing on this page comes from the network.`);
}

const tile = (count, name) => [count, count === 1 ? name : `${name}s`];

function summary() {
  const state = (name) => data.runs.filter((one) => one.state === name).length;
  const seconds = data.runs.map((one) => one.seconds).filter(isNumber).reduce((a, b) => a + b, 0);
  const tiles = [
    tile(state("finished"), "finished run"), tile(new Set(rows.map((one) => one.method)).size, "method"),
    tile(new Set(rows.map((one) => one.dataset)).size, "dataset"), [duration(seconds), "of training"],
  ];
  if (state("broken")) tiles.push(tile(state("broken"), "unfinished run"));
  if (state("damaged")) tiles.push(tile(state("damaged"), "damaged run"));
  const troubled = state("broken") + state("damaged");
  const made = section("summary", "Summary",
    "Accuracy is over all test images at the end of the stream, in percent: the mean over seeds, and \u00b1 the sample standard deviation.",
    make("ul", { class: "tiles" }, ...tiles.map(([value, label]) => make("li", {}, make("b", {}, String(value)), label))));
  if (troubled) {
    made.append(make("p", { class: "callout" }, `${several(troubled, "run")} did not end well or not yet, and `,
      troubled === 1 ? "has" : "have", " no part in the tables and figures: see ", make("a", { href: "#runs" }, "the list of all runs"), "."));
  }
  for (const [file, count] of Object.entries(data.passed_over)) {
    made.append(make("p", { class: "explain" }, word(file), `: ${several(count, "line")} that hold no results of runs, passed over.`));
  }
  if (rows.length) made.append(best());
}

function best() {
  const table = sortable({
    caption: "The best method in each setting; methods that learn all classes at once are references and do not compete",
    columns: [
      { label: "setting", value: (one) => one.name, cell: (one) => [word(one.name)] },
      ...[0, 1].map((place) => ({
        label: ["best", "second"][place],
        value: (one) => one.order[place]?.name,
        cell: ({ order }) => (order[place] ? [make("span", {}, word(order[place].name), " ", spread(order[place].accuracy), ` (n=${order[place].seeds.length})`)] : [MISSING]),
      })),
      { label: "rows", number: true, value: (one) => one.order.length, cell: (one) => [String(one.order.length)] },
    ],
    rows: settings().map((one) => ({
      name: one.name, order: one.rows.filter((row) => !isReference(row)),
    })),
  });
  return table.element;
}

// The settings that differ from the defaults, if a row has any.
function variantColumn(all) {
  if (!all.some((one) => one.variant)) return [];
  return [{ label: "variant", value: (one) => one.variant, cell: (one) => (one.variant ? [word(one.variant)] : []) }];
}

function resultTable(show) {
  const mean = (name) => (row) => row[name]?.[0];
  const measured = (label, name) => ({ label, number: true, value: mean(name), cell: (row) => [spread(row[name])] });
  const table = sortable({
    caption: "Every method and setting, over its seeds",
    columns: [
      { label: "method", value: (row) => row.method, cell: (row) => {
        const opener = button("", () => show(row.place));
        opener.className = "plain";
        opener.append(word(row.method));
        return [opener];
      } },
      ...variantColumn(rows),
      { label: "dataset", value: (row) => row.dataset, cell: (row) => [word(row.dataset)] },
      { label: "memory", number: true, value: (row) => row.memory, cell: (row) => [String(row.memory)] },
      { ...measured("accuracy", "accuracy"), adorn: (cell, row) => {
        cell.classList.add("measure");
        cell.style.backgroundSize = `${Math.min(100, Math.max(0, row.accuracy[0]))}% 100%`;
      } },
      measured("forgetting", "forgetting"),
      measured("learning", "learning"),
      measured("newest", "newest"),
      measured("any-time", "anytime"),
      { label: "n", number: true, value: (row) => row.seeds.length, cell: (row) => [String(row.seeds.length)] },
      { label: "images", number: true, value: (row) => row.images, cell: (row) => [short(row.images)] },
      { label: "time", number: true, value: (row) => row.seconds, cell: (row) => [duration(row.seconds)] },
      { label: "kept", number: true, value: (row) => row.kept, cell: (row) => [kept(row.kept)] },
    ],
    rows,
    sorted: { column: "accuracy", descending: true },
  });
  section("results", "Results",
    "Press a header to sort, and a method to see it in detail. Forgetting is how far tasks fell below their best accuracy; learning is their accuracy just after they were learned, and newest is the last task's at the end, since a method that learns little has little to forget. Any-time is the accuracy on the classes seen so far, averaged over the stream. Images counts trained images, with replayed ones. Time is training time. Kept is the size of the memory and of copies of the network.",
    filters(table, rows, (row) => `${row.method} ${row.variant} ${row.dataset} ${row.memory}`,
      [{ label: "Dataset", value: (row) => row.dataset }, { label: "Memory", value: (row) => row.memory }, { label: "Method", value: (row) => row.method }]),
    table.element);
}

const CURVES_AT_FIRST = 8;

function curves() {
  const usable = settings().map((one) => ({ ...one, rows: one.rows.filter((row) => row.curve) }))
    .filter((one) => one.rows.length);
  const without = rows.filter((row) => !row.curve).length;
  const place = make("div");
  const made = section("curves", "Accuracy over time",
    "Accuracy on the test images of the classes seen so far. Dotted lines mark the ends of tasks, bands one standard deviation.");
  if (without) made.append(make("p", { class: "explain" }, `${several(without, "row")} of the table ${without === 1 ? "has" : "have"} no curve: lines (.jsonl) record only the end, or a run's events are gone.`));
  if (!usable.length) return;
  const show = (setting) => place.replaceChildren(...curvesOf(setting));
  const chosen = choice("Setting", usable.map((one, k) => [String(k), one.name]), (k) => show(usable[Number(k)]));
  made.append(make("div", { class: "controls" }, chosen.element), place);
  show(usable[0]);
}

function curvesOf(setting) {
  const visible = new Set(setting.rows.slice(0, CURVES_AT_FIRST));
  const place = make("div");
  const paint = () => place.replaceChildren(lineChart({
    title: `Accuracy over time, ${setting.name}`,
    note: `${setting.name}: ${visible.size} of ${several(setting.rows.length, "row")} drawn, mean over seeds`,
    series: setting.rows.filter((row) => visible.has(row)).map((row) => ({
      name: row.name, colour: row.colour, dashed: isReference(row),
      points: row.curve.steps.map((step, k) => [step, row.curve.means[k], row.curve.deviations[k]]),
    })),
    x: { label: "batches learned" }, y: { label: "accuracy (%)", range: [0, 100], digits: 1 },
    marks: setting.rows.find((row) => !isReference(row))?.curve.ends ?? [],
  }));
  const legend = make("ul", { class: "legend", "aria-label": "Curves to draw" }, ...setting.rows.map((row) => {
    const toggle = button("", () => {
      if (visible.has(row)) visible.delete(row); else visible.add(row);
      toggle.setAttribute("aria-pressed", String(visible.has(row)));
      paint();
    });
    toggle.setAttribute("aria-pressed", String(visible.has(row)));
    toggle.append(make("span", { class: `swatch f${row.colour % COLOURS}` }), word(row.name));
    return make("li", {}, toggle);
  }));
  paint();
  return [legend, place];
}

function cost() {
  const usable = settings();
  const state = { setting: usable[0], by: "images" };
  const place = make("div");
  const measures = {
    images: { label: "images trained on", shown: short },
    seconds: { label: "seconds of training", shown: duration },
  };
  const paint = () => {
    const dots = state.setting.rows.map((row) => ({ name: row.name, colour: row.colour, x: row[state.by], y: row.accuracy[0] })).filter((one) => isNumber(one.x) && one.x > 0);
    const missing = state.setting.rows.length - dots.length;
    const machines = [...new Set(state.setting.rows.flatMap((row) => row.devices))].join(", ");
    const note = `${state.setting.name}. ${state.by === "seconds" ? `Seconds depend on the machine, here: ${machines}.` : "Each image that passes through the network and back counts, replayed ones too."}${missing ? ` Not recorded for ${several(missing, "row")}.` : ""}`;
    if (!dots.length) return place.replaceChildren(make("p", {}, note));
    return place.replaceChildren(scatter({ title: "Cost against accuracy", note, dots, x: measures[state.by], y: { label: "accuracy (%)", range: [0, 100] } }));
  };
  const pick = choice("Setting", usable.map((one, k) => [String(k), one.name]), (k) => { state.setting = usable[Number(k)]; paint(); });
  const by = choice("Cost", Object.entries(measures).map(([key, one]) => [key, one.label]), (key) => { state.by = key; paint(); });
  section("cost", "Cost against accuracy", "Up is better, left is cheaper.", make("div", { class: "controls" }, pick.element, by.element), place);
  paint();
}

// ---- one row in detail, and another one beside it

function detail() {
  const ordered = inOrder(rows, (row) => row.accuracy[0], true);
  const place = make("div", { class: "columns" });
  const probed = ordered.find((row) => !isReference(row) && row.balance?.pn_of_tasks.flat().some(isNumber));
  const chosen = [(probed ?? ordered[0]).place, null];
  const paint = () => place.replaceChildren(...chosen.filter((one) => one !== null).map((one) => detailOf(rows[one])));
  const options = ordered.map((row) => [String(row.place), `${row.name} \u2013 ${row.setting}`]);
  const first = choice("Show", options, (value) => { chosen[0] = Number(value); paint(); });
  const second = choice("Beside it", [["", "nothing"], ...options], (value) => { chosen[1] = value === "" ? null : Number(value); paint(); });
  const made = section("detail", "In detail",
    "One row of the table: the accuracy of each task and class over time, which classes are mistaken for others, and the balance of gradients if a probe recorded it.",
    make("div", { class: "controls" }, first.element, second.element), place);
  first.select.value = String(chosen[0]);
  paint();
  return (row) => {
    chosen[0] = row;
    first.select.value = String(row);
    paint();
    made.scrollIntoView();
    first.select.focus();
  };
}

function detailOf(row) {
  return make("div", {}, make("h3", {}, word(row.name), " \u2013 ", word(row.setting)),
    make("p", { class: "explain" }, `Means over ${several(row.seeds.length, "seed")}.`),
    make("div", { class: "columns" }, ...[tasksOf, classesOf, confusionOf, balanceOf].map((part) => make("div", {}, ...part(row)))));
}

const counted = (values) => values.map((_, place) => String(place + 1));
const widest = (values) => values.reduce((a, b) => (b.length > a.length ? b : a), []);
const absent = (title, why) => [make("h3", {}, title), make("p", { class: "explain" }, why)];

function tasksOf(row) {
  const title = "Accuracy of each task";
  if (!row.task_map) return absent(title, "Not recorded, or too large for a page of so many rows.");
  const tasks = counted(widest(row.task_map));
  return [make("h3", {}, title), heatMap({
    title, note: "Rows: the tested task. Columns: after which task. In percent.",
    rows: tasks, columns: counted(row.task_map), rowsAre: "task", columnsAre: "after task",
    values: tasks.map((_, task) => row.task_map.map((after) => after[task])),
  })];
}

function classesOf(row) {
  const title = "Accuracy of each class";
  if (!row.class_map) return absent(title, "Not recorded, or too large for a page of so many rows: a report of fewer runs shows it.");
  const { names, values, only_end: onlyEnd } = row.class_map;
  return [make("h3", {}, title), heatMap({
    title, note: onlyEnd ? "At the end, in percent; lines record only the end." : "Rows: the class, in the order of the stream. Columns: after which task. In percent.",
    rows: names, columns: onlyEnd ? ["end"] : counted(widest(values)), rowsAre: "class", columnsAre: onlyEnd ? "" : "after task", values,
  })];
}

function confusionOf(row) {
  const title = "Old and new classes taken for each other";
  if (!row.confusion) return absent(title, "Not recorded by earlier versions, or too large for a page of so many rows.");
  const { end, over_time: overTime } = row.confusion;
  const made = [make("h3", {}, title), heatMap({
    title, note: "At the end. Rows: the task of an image. Columns: the task of the predicted class, in percent of the images.",
    rows: counted(end), columns: counted(widest(end)), rowsAre: "images of task", columnsAre: "taken for task", values: end,
  })];
  if (overTime.length > 1) {
    const share = (which) => overTime.map((pair, task) => [task + 1, pair[which]]).filter((one) => isNumber(one[1]));
    const series = [{ name: "old taken for new", colour: 1, points: share(0) }, { name: "new taken for old", colour: 0, points: share(1) }];
    made.push(legendOf(series), lineChart({
      title: "Old taken for new, and new for old", note: "After each task, in percent of the test images of old and of new classes. New classes are those of the task that has just ended.",
      series, x: { label: "after task", whole: true }, y: { label: "%", digits: 1 },
    }));
  }
  return made;
}

const PN_AT_MOST = 10;

function balanceOf(row) {
  const title = "Balance of gradients: PN and A-PN";
  if (!row.balance) return absent(title, "No probe watched these runs: onepass run \u2026 --probe balance records it.");
  const { pn_of_tasks: pn, labels, a_pn: accumulated } = row.balance;
  if (!pn.flat().some(isNumber)) return absent(title, "A probe watched these runs and found no rate: the method has no softmax over the classes, or its gradients have one sign only.");
  const tasks = counted(widest(pn)).map((_, task) => task);
  const step = Math.ceil(tasks.length / PN_AT_MOST);
  const series = tasks.filter((task) => task % step === 0).map((task, colour) => ({
    name: `task ${task + 1}`, colour, points: pn.map((after, k) => [k + 1, after[task]]).filter((one) => isNumber(one[1])),
  }));
  const made = [make("h3", {}, title), legendOf(series), lineChart({
    title: "PN of the classes of each task", note: "PN(t, t'): positive over negative gradients on the logits of task t' while task t is learned. At \u22121 they balance; below, the logits are pushed down more than up; nearer to 0, up more than down.",
    series, x: { label: "while task t is learned", whole: true }, y: { label: "PN", digits: 2, level: -1 },
  })];
  if (labels.length) {
    made.push(lineChart({
      title: "A-PN of each class at the end", note: "Over the stream, class by class in order of arrival. At \u22121 the gradients that push a logit up and down are in balance.",
      series: [{ name: "A-PN", colour: 0, points: accumulated.map((one, k) => [k + 1, one]).filter((one) => isNumber(one[1])) }],
      x: { label: "class, by its place", whole: true }, y: { label: "A-PN", digits: 2, level: -1 },
    }));
  }
  return made;
}

function legendOf(series) {
  return make("ul", { class: "legend" }, ...series.map((one) => make("li", {}, make("span", { class: `swatch f${one.colour % COLOURS}` }), one.name)));
}

// ---- every run

function runList() {
  const told = { finished: "finished", broken: "unfinished", damaged: "damaged" };
  const trouble = (run) => [run.problem, ...run.notes].filter(Boolean).join("; ");
  const progress = (run) => (run.state === "broken" && isNumber(run.steps) ? ` at ${run.done ?? 0} of ${run.steps} steps` : "");
  const table = sortable({
    caption: "All runs, with those that have not finished or cannot be read",
    columns: [
      { label: "method", value: (run) => run.method, cell: (run) => [word(run.method || MISSING)] },
      ...variantColumn(data.runs),
      { label: "dataset", value: (run) => run.dataset, cell: (run) => [word(run.dataset || MISSING)] },
      { label: "memory", number: true, value: (run) => run.memory, cell: (run) => [isNumber(run.memory) ? String(run.memory) : MISSING] },
      { label: "seed", number: true, value: (run) => run.seed, cell: (run) => [isNumber(run.seed) ? String(run.seed) : MISSING] },
      { label: "accuracy", number: true, value: (run) => run.accuracy, cell: (run) => [fixed(run.accuracy)] },
      { label: "time", number: true, value: (run) => run.seconds, cell: (run) => [duration(run.seconds)] },
      { label: "state", value: (run) => told[run.state], cell: (run) => [make("span", {},
        make("span", { class: `state ${run.state}` }, told[run.state]), progress(run), trouble(run) ? ": " : "", word(trouble(run)))] },
      { label: "folder or line", value: (run) => run.where, cell: (run) => [repeating(run)] },
    ],
    rows: data.runs,
  });
  section("runs", "All runs, and how to repeat them",
    "A command asks for the same run again, with the same identity; where data lie, and a table's --test, are not recorded. The same bits need the same versions, device and threads.",
    filters(table, data.runs, (run) => `${run.method} ${run.variant} ${run.dataset} ${run.where} ${told[run.state]} ${trouble(run)} seed=${run.seed}`,
      [{ label: "State", value: (run) => told[run.state] }, { label: "Method", value: (run) => run.method || MISSING }]),
    table.element);
}

function repeating(run) {
  const versions = [run.commit && `commit ${run.commit}`, ...Object.entries(run.versions).map((one) => one.join(" ")), run.device].filter(Boolean);
  if (!run.command) return make("span", {}, word(run.where));
  return make("div", {}, word(run.where), make("details", {}, make("summary", {}, "command"),
    make("code", {}, run.command), make("div", { class: "spread" }, word(versions.join(", ")))));
}

function start() {
  introduce();
  summary();
  if (rows.length) {
    let show = null;
    resultTable((row) => show(row));
    curves();
    cost();
    show = detail();
  }
  runList();
  window.addEventListener("beforeprint", () => document.querySelectorAll("#runs details").forEach((one) => { one.open = true; }));
}

start();

"use strict";
// Elements, made one by one. Words from runs become text nodes and nothing else: no part of this
// page reads HTML out of a string.

const data = JSON.parse(document.getElementById("data").textContent);

function make(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function draw(name, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// A word from a run: whatever its direction of writing is, it does not change that of others.
function word(text) {
  return make("bdi", {}, text);
}

function button(label, pressed) {
  const made = make("button", { type: "button" }, label);
  made.addEventListener("click", () => pressed(made));
  return made;
}

// A labelled choice; `options` are pairs of a value and what is shown.
function choice(label, options, changed) {
  const select = make("select", {}, ...options.map(([value, text]) => make("option", { value }, text)));
  select.addEventListener("change", () => changed(select.value));
  return { element: make("label", {}, label, select), select };
}

function section(id, title, explanation, ...content) {
  document.getElementById("sections").append(make("li", {}, make("a", { href: `#${id}` }, title)));
  const made = make("section", { id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, title),
    make("p", { class: "explain" }, explanation), ...content);
  document.getElementById("main").append(made);
  return made;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const MISSING = "\u2013";

function fixed(value, digits = 1) {
  if (!isNumber(value)) return MISSING;
  return Math.abs(value) < 1e9 ? value.toFixed(digits) : value.toExponential(2);
}

// As short as it can be told: 12 k, 3.4 M.
function short(value) {
  if (!isNumber(value)) return MISSING;
  for (const [unit, sign] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(value) >= unit) return `${Number((value / unit).toPrecision(3))}${sign}`;
  }
  return String(Number(value.toPrecision(3)));
}

function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  if (seconds >= 5400) return `${fixed(seconds / 3600)} h`;
  if (seconds >= 90) return `${fixed(seconds / 60)} min`;
  return `${fixed(seconds, seconds < 10 ? 1 : 0)} s`;
}

function spread(pair) {
  if (!pair) return MISSING;
  const deviation = isNumber(pair[1]) ? make("span", { class: "spread" }, ` \u00b1 ${fixed(pair[1])}`) : null;
  return make("span", {}, fixed(pair[0]), deviation);
}

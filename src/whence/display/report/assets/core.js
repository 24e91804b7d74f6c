// What every other script uses: arrays from text, numbers as words, elements from names.
"use strict";

const MISSING = "–";

// The counterpart of packing.py: {type, shape, data} → a typed array, row by row.
function unpack(packed) {
  if (packed.type === "shown") return unpackShown(packed);
  const bytes = bytesOf(packed.data);
  const size = packed.shape.reduce((a, b) => a * b, 1);
  if (packed.type === "bits") {
    return Uint8Array.from({ length: size }, (_, i) => (bytes[i >> 3] >> (7 - (i & 7))) & 1);
  }
  const kinds = { f64: Float64Array, f32: Float32Array, u32: Uint32Array, u8: Uint8Array };
  return new kinds[packed.type](bytes.buffer, 0, size);
}

// Numbers with the decimals they are shown with, one character each: the counterpart of pack_shown.
function unpackShown({ data, places, least }) {
  return Float64Array.from(data, (character) => {
    let code = character.codePointAt(0);
    if (code === 0x20) return NaN;
    if (code >= 0xe000) code -= 0x800;
    const n = code - 0x23 - (code > 0x5c ? 1 : 0);
    const steps = least === null ? (n % 2 ? -(n + 1) / 2 : n / 2) : least + n;
    return steps / 10 ** places;
  });
}

// The counterpart of pack_intervals: [{score, low, high}].
function unpackIntervals(packed) {
  const [middle, below, skew] = [packed.middle, packed.below, packed.skew].map(unpack);
  return Array.from(middle, (score, i) => ({ score, low: score - below[i], high: score + below[i] + skew[i] }));
}

// Row i of an array that was unpacked with this shape.
function rowOf(array, shape, i) {
  return array.subarray(i * shape[1], (i + 1) * shape[1]);
}

const finite = (value) => typeof value === "number" && Number.isFinite(value);

// As number() of the command line: so many decimals, a dash for what is missing, no "-0.00".
function number(value, places = 2, signed = false) {
  if (!finite(value)) return MISSING;
  if (Math.abs(value) >= 1e10 || places > 7) return withSign(value.toExponential(2), signed && value > 0);
  let text = value.toFixed(places);
  if (Number(text) === 0) text = (0).toFixed(places);
  return withSign(text, signed && Number(text) >= 0);
}

function withSign(text, plus) {
  return (plus ? "+" : "") + text.replace("-", "−");
}

// As span() of the command line: an end that is signed keeps its sign where it is rounded to zero.
function span(low, high, places = 2, signed = false) {
  const end = (value) => {
    const text = number(value, places, signed);
    return signed && value < 0 && text.startsWith("+") ? withSign(`-${text.slice(1)}`, false) : text;
  };
  return finite(low) && finite(high) ? `${end(low)} to ${end(high)}` : MISSING;
}

const percent = (value) => (finite(value) ? `${Math.round(100 * value)}%` : MISSING);

const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

// An element; text is always text, never markup, so that no name from the data can become a tag.
function el(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function build(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}

// Children may come in lists of lists, and those that are not there as null.
const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined);

// A name that may be broken after a separator, and inside a word only where there is no other way.
const named = (name) => name.split(/(?<=[_\-/.:,])(?=[^\s])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));

// A weight with three digits, but no more than three decimals where they show it; large ones as an amount, in millions.
function weightText(weight) {
  const rounded = Number(weight >= 0.0005 && weight < 0.1 ? weight.toFixed(3) : weight.toPrecision(3));
  const scales = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
  const found = scales.find(([scale]) => rounded >= scale);
  return found ? `${Number((rounded / found[0]).toPrecision(4))}${found[1]}` : String(rounded);
}

// A list of names, broken between them rather than inside.
const listed = (text) =>
  text.split(/(?<=,) (?! )|(?= and \d+ more$)/).flatMap((part) => [el("span", { class: "whole" }, named(part.trim())), " "]);

const button = (attributes, onclick, ...children) => el("button", { type: "button", ...attributes, onclick }, ...children);

const link = (onclick, ...children) => button({ class: "link" }, onclick, ...children);

// A table that scrolls: columns as [heading, class], without headings where there are none; rows as lists of cells.
function tableOf({ id, caption, columns, rows, chosen = -1 }) {
  const cell = (content, i) =>
    content instanceof HTMLTableCellElement ? content : el("td", { class: columns[i][1] }, content);
  const heads = columns.map(([text, cls]) => el("th", { scope: "col", class: cls }, text));
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { id },
      caption ? el("caption", { class: "unseen" }, caption) : null,
      columns.some(([text]) => text) ? el("thead", {}, el("tr", {}, heads)) : null,
      el(
        "tbody",
        {},
        rows.map((row, r) => el("tr", { class: r === chosen ? "chosen" : null }, row.map(cell))),
      ),
    ),
  );
}

const verdictCell = (words, { verdict }) =>
  el("td", { class: `verdict ${WORD_CLASSES[verdict]}` }, words[verdict]);

const byId = (id) => document.getElementById(id);

function put(node, ...children) {
  node.replaceChildren(...present(children));
}

const fill = (id, ...children) => put(byId(id), ...children);

// Let the browser paint and listen, whenever work has gone on for longer than a person would notice.
let rested = 0;

async function pause() {
  if (performance.now() - rested < 30) return;
  await new Promise((resolve) => setTimeout(resolve, 0));
  rested = performance.now();
}

// Evenly spaced round numbers that span [low, high].
function ticks(low, high, wanted = 5) {
  const rough = (high - low) / wanted;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

function tickPlaces(values) {
  if (values.length < 2) return 2;
  return Math.min(7, Math.max(0, Math.ceil(-Math.log10(values[1] - values[0]) - 1e-9)));
}

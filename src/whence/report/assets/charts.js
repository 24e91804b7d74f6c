// Pictures that several sections draw: axes, strips of runs, tooltips.

const CLASSES = ["g", "b", "u"]; // good, bad, unclear: the order of verdicts in the document
const WORD_CLASSES = ["good", "bad", "dim"];

function scale(low, high, from, to) {
  const width = high - low || 1;
  return (value) => from + ((value - low) / width) * (to - from);
}

function canvas(width, height, label, ...children) {
  const attributes = { viewBox: `0 0 ${width} ${height}`, role: label ? "img" : "presentation" };
  if (label) attributes["aria-label"] = label;
  const picture = svg("svg", attributes, ...children);
  picture.style.maxWidth = `${width}px`; // on paper, too, letters keep their size
  return picture;
}

// The width that a picture in this element will have; a sensible one while it is hidden.
const widthOf = (element, least = 260) => Math.max(least, element.clientWidth || 640);

function xAxis(x, values, y, height, places) {
  return values.map((value) => [
    svg("line", { x1: x(value), x2: x(value), y1: y, y2: y - height, class: "axis" }),
    svg("text", { x: x(value), y: y + 15, "text-anchor": "middle" }, number(value, places)),
  ]);
}

function yAxis(y, values, x, width, places) {
  return values.map((value) => [
    svg("line", { x1: x, x2: x + width, y1: y(value), y2: y(value), class: "axis" }),
    svg("text", { x: x - 6, y: y(value) + 4, "text-anchor": "end" }, number(value, places)),
  ]);
}

// [low, high] of the finite values, with some air.
function extent(values, air = 0.04) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!finite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  const margin = (high - low || Math.abs(high) || 1) * air;
  return [low - margin, high + margin];
}

// Dots for measured runs along an axis, heaped where they are many.
function strip(values, x, base, { radius = 2.6, most = 9, cls = "u", tips = null } = {}) {
  const heaps = new Map();
  const found = [];
  const step = radius * 1.9;
  values.forEach((value, i) => {
    if (!finite(value)) return;
    const place = Math.round(x(value) / (radius * 2));
    const level = heaps.get(place) ?? 0;
    heaps.set(place, level + 1);
    const lift = step * (level % most);
    const attributes = { cx: x(value).toFixed(1), cy: (base - radius - lift).toFixed(1), r: radius, class: cls };
    if (tips) attributes["data-tip"] = tips(i);
    attributes.opacity = 0.55;
    found.push(svg("circle", attributes));
  });
  return found;
}

// One tooltip for everything that has data-tip, by pointer and by keyboard.
function startTips() {
  const tip = byId("tip");
  const show = (event) => {
    const holder = event.target.closest?.("[data-tip]");
    tip.hidden = !holder;
    if (!holder) return;
    tip.textContent = holder.getAttribute("data-tip");
    const box = holder.getBoundingClientRect();
    const at = event.type === "pointerover" ? { x: event.clientX, y: event.clientY } : { x: box.x, y: box.bottom };
    tip.style.left = `${Math.max(8, Math.min(at.x + 12, innerWidth - tip.offsetWidth - 8))}px`;
    const below = at.y + 16;
    tip.style.top = `${below + tip.offsetHeight > innerHeight ? at.y - tip.offsetHeight - 10 : below}px`;
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, show);
  for (const kind of ["focusout", "scroll"]) document.addEventListener(kind, () => (tip.hidden = true), true);
}

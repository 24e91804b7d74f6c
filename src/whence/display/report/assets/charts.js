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

// How wide a text is, in pixels at this size of letters.
function textWidth(text, size) {
  textWidth.pen ??= document.createElement("canvas").getContext("2d");
  textWidth.pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return textWidth.pen.measureText(text).width;
}

// Coloured cells with whole names on two sides; `cell(r, c)` says what is in each, or null. Value 1 is best, −1 worst.
function grid({ rows, columns, cell, label, width, largest, smallest = 11, square = false, current = -1 }) {
  const font = (size) => Math.max(7, Math.min(11.5, size * 0.8));
  const longest = (names, size) => Math.max(...names.map((name) => textWidth(name, size)), 8);
  const fitting = (left) => Math.max(smallest, Math.min(largest, (width - left - 30) / columns.length));
  // The margin follows the letters, whose size follows the cells, whose size follows the margin.
  let margin = 12 + longest(rows, 11.5);
  margin = 12 + longest(rows, font(fitting(margin)));
  const size = fitting(margin);
  const high = square ? size : Math.min(size, 26);
  const letters = font(Math.min(size, high + 4));
  const slant = 0.67 * size >= letters ? 42 : 90; // upright where slanted names would touch
  const head = 10 + letters + longest(columns, letters) * Math.sin((slant * Math.PI) / 180);
  // How far slanted names reach beyond the last column.
  const ends = columns.map((name, c) => textWidth(name, letters) * Math.cos((slant * Math.PI) / 180) + (c + 0.5) * size);
  const lean = Math.max(...ends) - (columns.length - 0.5) * size;
  const total = margin + columns.length * size + Math.max(12, lean + 10 - size / 2);
  const parts = [];
  const style = `font-size: ${letters}px`;
  columns.forEach((name, c) => {
    const x = margin + (c + 0.5) * size;
    parts.push(
      svg(
        "text",
        { transform: `translate(${x + 3} ${head - 5}) rotate(${-slant})`, style, class: c === current ? "ink" : "" },
        name,
      ),
    );
  });
  rows.forEach((name, r) => {
    const y = head + r * high;
    parts.push(svg("text", { x: margin - 6, y: y + high / 2 + 4, "text-anchor": "end", style }, name));
    columns.forEach((_, c) => {
      const one = cell(r, c);
      const at = { x: margin + c * size, y, width: size - 1, height: high - 1, rx: 2 };
      if (!one) {
        parts.push(svg("rect", { ...at, fill: "var(--faint)", opacity: square && r === c ? 0.9 : 0.4 }));
        return;
      }
      const shade = Math.round(100 * Math.sqrt(Math.min(1, Math.abs(one.value))));
      const fill = `color-mix(in oklab, var(--${one.value > 0 ? "good" : "bad"}) ${shade}%, var(--card))`;
      parts.push(svg("rect", { ...at, style: `fill: ${fill}`, class: "cell", "data-tip": one.tip, onclick: one.act }));
      if (one.sure)
        parts.push(
          svg("circle", {
            cx: at.x + at.width / 2,
            cy: y + at.height / 2,
            r: Math.min(2.4, size / 7),
            fill: shade > 55 ? "var(--card)" : "var(--ink)",
            "pointer-events": "none",
          }),
        );
    });
  });
  const picture = canvas(total, head + rows.length * high + 4, label, parts);
  // Large ones scroll rather than shrink beyond reading.
  picture.style.minWidth = `${Math.min(total, Math.max(280, margin + columns.length * smallest + lean))}px`;
  return picture;
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

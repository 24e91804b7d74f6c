// Which tasks work together: the matrix of all pairs, the network of the strongest, and their table.

const MOST_EDGES = 40;
const MOST_PAIRS = 12; // rows of the table
const WIDE_MATRIX = 20;

function pairsOf(report, target) {
  const { pairs } = report.doc;
  const own = pairs.targets?.[target];
  if (!own) return null;
  const a = unpack(own.a);
  const b = unpack(own.b);
  const effects = report.effectsOf(own);
  const list = Array.from(a, (first, i) => ({
    a: first, b: b[i], score: effects.score[i], low: effects.low[i], high: effects.high[i], verdict: effects.verdict[i],
  }));
  return { list, order: own.order, places: own.places, words: pairs.words };
}

function showPairs(report, state, actions) {
  const { pairs } = report.doc;
  const found = pairsOf(report, state.target);
  if (!found) {
    byId("pairs-intro").textContent = pairs.reason ?? "The pairs of this target are not in this page: there are too many targets.";
    fill("pairs-body");
    return;
  }
  const { name, up } = report.targets[state.target];
  const sign = up ? 1 : -1;
  byId("pairs-intro").textContent =
    `${pairs.heading} interactions for ${name}: ${pairs.what} (${pairs.how}). Pairs that ${found.words[0]} do better ` +
    `than the sum of the two; pairs that ${found.words[1]} do worse, often because one makes the other redundant.`;
  const left = el("div", { class: "scroll", id: "matrix" });
  const right = el("figure", { id: "network" });
  const table = strongest(report, found, actions);
  const big = el("div", {}, left, legendOf(found));
  // A large matrix needs the whole width; then the network stands beside the table.
  fill("pairs-body", found.order.length > WIDE_MATRIX
    ? [big, el("div", { class: "columns lopsided" }, right, table)]
    : [el("div", { class: "columns" }, big, right), table]);
  put(left, matrix(report, found, sign, actions, widthOf(left)));
  put(right, network(report, found, sign, actions));
}

function legendOf(found) {
  return el("p", { class: "legend" }, found.words.slice(0, 2).map((word, code) =>
    el("span", {}, el("i", { style: `background: var(--${["good", "bad"][code]})` }), word)), el("span", {}, "• can be told from zero"));
}

function matrix(report, found, sign, actions, width) {
  const { order, list } = found;
  const place = new Map(order.map((task, i) => [task, i]));
  const cells = new Map();
  for (const p of list) {
    if (!place.has(p.a) || !place.has(p.b)) continue;
    cells.set(place.get(p.a) * order.length + place.get(p.b), p);
    cells.set(place.get(p.b) * order.length + place.get(p.a), p);
  }
  const limit = Math.max(...list.map((p) => Math.abs(p.score)), 1e-300);
  return grid({
    rows: order.map((k) => report.tasks[k]), columns: order.map((k) => report.tasks[k]), current: -1, square: true, width,
    label: `Interactions of ${counted(order.length, "task")}; the strongest are in the table below`,
    cell: (r, c) => {
      const p = cells.get(r * order.length + c);
      if (!p) return null;
      return {
        value: (sign * p.score) / limit, sure: p.verdict !== 2,
        tip: `${report.tasks[order[r]]} + ${report.tasks[order[c]]}\n${number(p.score, found.places, true)} (${span(p.low, p.high, found.places, true)})\n${found.words[p.verdict]}`,
        act: () => actions.openProfile(order[r]),
      };
    },
  });
}

// Coloured cells with names on two sides; `cell(r, c)` says what is in each, or null. Value 1 is best, −1 worst.
function grid({ rows, columns, cell, label, current, width, square = false }) {
  const most = Math.max(...rows.map((name) => name.length), 1);
  const longest = Math.max(...columns.map((name) => name.length), 1);
  const font = (size) => Math.max(7, Math.min(11.5, size * 0.8));
  let margin = Math.min(150, 8 + most * 6.2);
  let size = Math.max(11, Math.min(square ? (columns.length > WIDE_MATRIX ? 22 : 34) : 44, (width - margin - 30) / columns.length));
  margin = Math.min(150, 8 + most * font(size) * 0.58);
  size = Math.max(11, Math.min(square ? (columns.length > WIDE_MATRIX ? 22 : 34) : 44, (width - margin - 30) / columns.length));
  const high = square ? size : Math.min(size, 26);
  const limit = Math.floor(150 / (font(size) * 0.58));
  const cut = (name) => (name.length > limit ? `${name.slice(0, limit - 1)}…` : name);
  const head = Math.min(130, 14 + Math.min(longest, limit) * font(size) * 0.42);
  const total = margin + columns.length * size + 60;
  const parts = [];
  const style = `font-size: ${font(Math.min(size, high + 4))}px`;
  columns.forEach((name, c) => {
    const x = margin + (c + 0.5) * size;
    parts.push(svg("text", { transform: `translate(${x + 3} ${head - 5}) rotate(-42)`, style, class: c === current ? "ink" : "" }, cut(name)));
  });
  rows.forEach((name, r) => {
    const y = head + r * high;
    parts.push(svg("text", { x: margin - 6, y: y + high / 2 + 4, "text-anchor": "end", style }, cut(name)));
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
      if (one.sure) parts.push(svg("circle", { cx: at.x + at.width / 2, cy: y + at.height / 2, r: Math.min(2.4, size / 7), fill: shade > 55 ? "var(--card)" : "var(--ink)", "pointer-events": "none" }));
    });
  });
  const picture = canvas(total, head + rows.length * high + 4, label, parts);
  // Large ones scroll rather than shrink beyond reading.
  picture.style.minWidth = `${Math.min(total, Math.max(280, margin + columns.length * 11))}px`;
  return picture;
}

function network(report, found, sign, actions) {
  const sure = found.list.filter((p) => p.verdict !== 2).sort((p, q) => Math.abs(q.score) - Math.abs(p.score)).slice(0, MOST_EDGES);
  if (!sure.length) return [el("p", { class: "note" }, "No pair can be told from zero with these runs.")];
  const nodes = found.order.filter((k) => sure.some((p) => p.a === k || p.b === k));
  for (const p of sure) for (const k of [p.a, p.b]) if (!nodes.includes(k)) nodes.push(k);
  const radius = 150;
  const size = 2 * (radius + 18 + 6.2 * Math.min(16, Math.max(...nodes.map((k) => report.tasks[k].length))));
  const angle = (i) => (2 * Math.PI * i) / nodes.length - Math.PI / 2;
  const at = new Map(nodes.map((k, i) => [k, { x: size / 2 + radius * Math.cos(angle(i)), y: size / 2 + radius * Math.sin(angle(i)), a: angle(i) }]));
  const limit = Math.abs(sure[0].score);
  const edges = sure.toReversed().map((p) => {
    const [from, to] = [at.get(p.a), at.get(p.b)];
    const pull = 0.35;
    const mx = size / 2 + ((from.x + to.x) / 2 - size / 2) * pull;
    const my = size / 2 + ((from.y + to.y) / 2 - size / 2) * pull;
    return svg("path", {
      d: `M${from.x} ${from.y} Q${mx} ${my} ${to.x} ${to.y}`, fill: "none", "stroke-linecap": "round", opacity: 0.8,
      class: sign * p.score > 0 ? "gs" : "bs", "stroke-width": 1 + 6 * (Math.abs(p.score) / limit),
      "data-tip": `${report.tasks[p.a]} + ${report.tasks[p.b]}\n${number(p.score, found.places, true)} (${span(p.low, p.high, found.places, true)})\n${found.words[p.verdict]}`,
    });
  });
  const dots = nodes.map((k) => {
    const { x, y, a } = at.get(k);
    const right = Math.cos(a) >= 0;
    const turn = (a * 180) / Math.PI + (right ? 0 : 180);
    const name = report.tasks[k].length > 16 ? `${report.tasks[k].slice(0, 15)}…` : report.tasks[k];
    return svg("g", { class: "dot", onclick: () => actions.openProfile(k), "data-tip": report.tasks[k] },
      svg("circle", { cx: x, cy: y, r: 5, fill: "var(--ink)" }),
      svg("text", { class: "ink", transform: `translate(${x + 10 * Math.cos(a)} ${y + 10 * Math.sin(a)}) rotate(${turn})`, "text-anchor": right ? "start" : "end", dy: 4 }, name));
  });
  const caption = sure.length < MOST_EDGES ? `The ${counted(sure.length, "pair")} that can be told from zero` : `The ${MOST_EDGES} strongest pairs that can be told from zero`;
  return [canvas(size, size, `${caption}, drawn as a network`, edges, dots), el("figcaption", {}, `${caption}; the wider the line, the stronger.`)];
}

function strongest(report, found, actions) {
  const rows = [...found.list].sort((p, q) => Math.abs(q.score) - Math.abs(p.score)).slice(0, MOST_PAIRS);
  return el("div", { class: "scroll" }, el("table", { id: "pair-table" },
    el("caption", { class: "unseen" }, "The strongest pairs"),
    el("thead", {}, el("tr", {}, ["pair", "score", "90% interval", "verdict"].map((text, i) =>
      el("th", { scope: "col", class: ["names", "num", "num wide", "verdict"][i] }, text)))),
    el("tbody", {}, rows.map((p) => el("tr", {},
      el("td", { class: "names" }, task(p.a), " + ", task(p.b)),
      el("td", { class: "num" }, number(p.score, found.places, true)),
      el("td", { class: "num wide" }, span(p.low, p.high, found.places, true)),
      el("td", { class: `verdict ${WORD_CLASSES[p.verdict]}` }, found.words[p.verdict]))))));

  function task(k) {
    return el("button", { type: "button", class: "link", onclick: () => actions.openProfile(k) }, report.tasks[k]);
  }
}

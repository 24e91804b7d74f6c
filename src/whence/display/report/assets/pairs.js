// Which tasks work together: the matrix of all pairs, the network of the strongest, and their table.

const MOST_EDGES = 40;
const MOST_PAIRS = 12; // rows of the table
const WIDE_MATRIX = 20; // more tasks need the whole width of the page

function pairsOf(report, target) {
  const { pairs } = report.doc;
  const own = pairs.targets?.[target];
  if (!own) return null;
  const verdict = unpack(own.verdict);
  const [a, b] = own.a ? [unpack(own.a), unpack(own.b)] : allPairs(report.K);
  const list = unpackIntervals(own).map((one, i) => ({ a: a[i], b: b[i], ...one, verdict: verdict[i] }));
  return { list, order: own.order, places: own.places, words: pairs.words };
}

function allPairs(tasks) {
  const [a, b] = [[], []];
  for (let k = 0; k < tasks; k++) {
    for (let l = k + 1; l < tasks; l++) {
      a.push(k);
      b.push(l);
    }
  }
  return [a, b];
}

function showPairs(report, state, actions) {
  const { pairs } = report.doc;
  const found = pairsOf(report, state.target);
  if (!found) {
    byId("pairs-intro").textContent =
      pairs.reason ?? "The pairs of this target are not in this page: there are too many targets.";
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
  fill(
    "pairs-body",
    found.order.length > WIDE_MATRIX
      ? [big, el("div", { class: "columns lopsided" }, right, table)]
      : [el("div", { class: "columns" }, big, right), table],
  );
  put(left, matrix(report, found, sign, actions, widthOf(left)));
  put(right, network(report, found, sign, actions));
}

function legendOf(found) {
  return el(
    "p",
    { class: "legend" },
    found.words
      .slice(0, 2)
      .map((word, code) => el("span", {}, el("i", { style: `background: var(--${["good", "bad"][code]})` }), word)),
    el("span", {}, "• can be told from zero"),
  );
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
    rows: order.map((k) => report.tasks[k]),
    columns: order.map((k) => report.tasks[k]),
    square: true,
    largest: order.length > WIDE_MATRIX ? 22 : 34,
    width,
    label: `Interactions of ${counted(order.length, "task")}; the strongest are in the table below`,
    cell: (r, c) => {
      const p = cells.get(r * order.length + c);
      if (!p) return null;
      return {
        value: (sign * p.score) / limit,
        sure: p.verdict !== 2,
        tip: `${report.tasks[order[r]]} + ${report.tasks[order[c]]}\n${number(p.score, found.places, true)} (${span(p.low, p.high, found.places, true)})\n${found.words[p.verdict]}`,
        act: () => actions.openProfile(order[r]),
      };
    },
  });
}

function network(report, found, sign, actions) {
  const sure = found.list
    .filter((p) => p.verdict !== 2)
    .sort((p, q) => Math.abs(q.score) - Math.abs(p.score))
    .slice(0, MOST_EDGES);
  if (!sure.length) return [el("p", { class: "note" }, "No pair can be told from zero with these runs.")];
  if (sure.length === 1) {
    const [a, b] = [sure[0].a, sure[0].b].map((k) => report.tasks[k]);
    return [el("p", { class: "note" }, `Only one pair can be told from zero: ${a} + ${b}.`)];
  }
  const nodes = found.order.filter((k) => sure.some((p) => p.a === k || p.b === k));
  for (const p of sure) for (const k of [p.a, p.b]) if (!nodes.includes(k)) nodes.push(k);
  const radius = 150;
  const size = 2 * (radius + 18 + 6.2 * Math.min(28, Math.max(...nodes.map((k) => report.tasks[k].length))));
  const angle = (i) => (2 * Math.PI * i) / nodes.length - Math.PI / 2;
  const at = new Map(
    nodes.map((k, i) => [
      k,
      { x: size / 2 + radius * Math.cos(angle(i)), y: size / 2 + radius * Math.sin(angle(i)), a: angle(i) },
    ]),
  );
  const limit = Math.abs(sure[0].score);
  const edges = sure.toReversed().map((p) => {
    const [from, to] = [at.get(p.a), at.get(p.b)];
    const pull = 0.35;
    const mx = size / 2 + ((from.x + to.x) / 2 - size / 2) * pull;
    const my = size / 2 + ((from.y + to.y) / 2 - size / 2) * pull;
    return svg("path", {
      d: `M${from.x} ${from.y} Q${mx} ${my} ${to.x} ${to.y}`,
      fill: "none",
      "stroke-linecap": "round",
      opacity: 0.8,
      class: sign * p.score > 0 ? "gs" : "bs",
      "stroke-width": 1 + 6 * (Math.abs(p.score) / limit),
      "data-tip": `${report.tasks[p.a]} + ${report.tasks[p.b]}\n${number(p.score, found.places, true)} (${span(p.low, p.high, found.places, true)})\n${found.words[p.verdict]}`,
    });
  });
  const dots = nodes.map((k) => {
    const { x, y, a } = at.get(k);
    const right = Math.cos(a) >= 0;
    const turn = (a * 180) / Math.PI + (right ? 0 : 180);
    const name = report.tasks[k].length > 28 ? `${report.tasks[k].slice(0, 27)}…` : report.tasks[k];
    return svg(
      "g",
      { class: "dot", onclick: () => actions.openProfile(k), "data-tip": report.tasks[k] },
      svg("circle", { cx: x, cy: y, r: 5, fill: "var(--ink)" }),
      svg(
        "text",
        {
          class: "ink",
          transform: `translate(${x + 10 * Math.cos(a)} ${y + 10 * Math.sin(a)}) rotate(${turn})`,
          "text-anchor": right ? "start" : "end",
          dy: 4,
        },
        name,
      ),
    );
  });
  const caption =
    sure.length < MOST_EDGES
      ? `The ${counted(sure.length, "pair")} that can be told from zero`
      : `The ${MOST_EDGES} strongest pairs that can be told from zero`;
  return [
    canvas(size, size, `${caption}, drawn as a network`, edges, dots),
    el("figcaption", {}, `${caption}; the wider the line, the stronger.`),
  ];
}

function strongest(report, found, actions) {
  const rows = [...found.list].sort((p, q) => Math.abs(q.score) - Math.abs(p.score)).slice(0, MOST_PAIRS);
  const task = (k) => link(() => actions.openProfile(k), named(report.tasks[k]));
  return tableOf({
    id: "pair-table",
    caption: "The strongest pairs",
    columns: [
      ["pair", "names"],
      ["score", "num"],
      ["90% interval", "num wide"],
      ["verdict", "verdict"],
    ],
    rows: rows.map((p) => [
      [task(p.a), " + ", task(p.b)],
      number(p.score, found.places, true),
      span(p.low, p.high, found.places, true),
      verdictCell(found.words, p),
    ]),
  });
}

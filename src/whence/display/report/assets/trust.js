// Can I trust this? Held-out predictions, yardsticks, the learning curve, the runs that fit worst, the data.

const WORST = 6;
const WEIGHT = "the share of each surrogate in all predictions on this page";

function showTrust(report, state, actions) {
  const held = report.heldOut(state.target);
  const { answer } = report.targets[state.target];
  byId("trust-intro").textContent = `${answer.trust} ${report.doc.trust.estimates}`;
  fill("scatter", ...scatter(report, state, held, actions));
  fill("methods", ...methods(report, state));
  fill("curve", ...curve(report, answer.more));
  fill("worst", ...worst(report, state, held, actions));
  fill(
    "concerns",
    el("h3", {}, "About the data"),
    report.doc.concerns.length
      ? el(
          "ul",
          { class: "warnings" },
          report.doc.concerns.map((text) => el("li", { class: "warning" }, text)),
        )
      : el("p", { class: "note" }, "Nothing in the table of runs asks for attention."),
  );
}

function scatter(report, state, held, actions) {
  const { target } = state;
  const { name, answer } = report.targets[target];
  if (!held.length)
    return [el("p", { class: "note" }, "No runs were held out, so that predictions could not be checked.")];
  const width = Math.min(520, widthOf(byId("scatter")));
  const height = width * 0.92;
  const [least, most] = extent(held.flatMap((one) => [one.predicted, one.measured]));
  const x = scale(least, most, 58, width - 12);
  const y = scale(least, most, height - 42, 10);
  const marks = ticks(least, most, 5);
  const places = tickPlaces(marks);
  const dots = held.map((one) =>
    svg("circle", {
      cx: x(one.predicted).toFixed(1),
      cy: y(one.measured).toFixed(1),
      r: held.length > 400 ? 2.4 : 3.4,
      class: `dot ${one.outside ? "b" : "u"}`,
      opacity: 0.65,
      onclick: () => actions.explore(report.subset(one.run)),
      "data-tip":
        `run ${one.run + 1}: measured ${number(one.measured, answer.places)}, predicted ${number(one.predicted, answer.places)} ` +
        `(${span(one.low, one.high, answer.places)})\n${report.subsetName(report.subset(one.run))}`,
    }),
  );
  const outside = held.filter((one) => one.outside).length;
  const known = held.filter((one) => finite(one.off)).length;
  return [
    canvas(
      width,
      height,
      `Predicted and measured ${name} of ${held.length} held-out runs`,
      xAxis(x, marks, height - 42, height - 52, places),
      yAxis(y, marks, 58, width - 70, places),
      svg("line", { x1: x(least), y1: y(least), x2: x(most), y2: y(most), class: "zero", "stroke-dasharray": "4 4" }),
      dots,
      svg("text", { x: (58 + width) / 2, y: height - 8, "text-anchor": "middle" }, `predicted ${name}`),
      svg(
        "text",
        { transform: `translate(13 ${height / 2 - 16}) rotate(-90)`, "text-anchor": "middle" },
        `measured ${name}`,
      ),
    ),
    el(
      "figcaption",
      {},
      `Each of ${counted(held.length, "run")} as predicted without it` +
        `${known ? `; ${percent(1 - outside / known)} lie in their 90% interval, the others are orange` : ""}.`,
    ),
  ];
}

function methods(report, state) {
  const { trust } = report.doc;
  const t = state.target;
  if (!trust.methods.length) return [el("p", { class: "note" }, "Too few runs for cross-validation.")];
  const ceiling = trust.ceiling.value[t];
  const names = Object.keys(trust.legend);
  const most = Math.max(...trust.methods.map((m) => m.lds[t] ?? 0), ceiling ?? 0, 0.01);
  const rows = trust.methods.map((m) =>
    el(
      "tr",
      { class: m.used[t] ? "chosen" : null },
      el("td", { "data-tip": m.what || null }, m.name),
      el("td", { class: "num" }, finite(m.weight[t]) ? percent(m.weight[t]) : null),
      el(
        "td",
        { class: "num", "data-tip": finite(m.low[t]) ? `on new runs probably ${span(m.low[t], m.high[t])}` : null },
        meter(m.lds[t], most, m.used[t]),
        number(m.lds[t]),
        m.used[t] && finite(m.low[t]) ? el("span", { class: "below" }, ` (${span(m.low[t], m.high[t])})`) : null,
      ),
      el("td", { class: "num" }, number(m.residual_error[t])),
      el("td", { class: "num" }, percent(m.coverage[t])),
    ),
  );
  if (finite(ceiling)) {
    rows.push(
      el(
        "tr",
        {},
        el("td", { colspan: 2 }, "noise ceiling"),
        el("td", { class: "num" }, meter(ceiling, most), number(ceiling)),
        el("td", { class: "num", colspan: 2 }, `${span(trust.ceiling.low[t], trust.ceiling.high[t])}`),
      ),
    );
  }
  return [
    el(
      "table",
      {},
      el("caption", { class: "unseen" }, "Scores on held-out runs"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "on held-out runs"),
          el("th", { scope: "col", class: "num", "data-tip": WEIGHT }, "weight"),
          names.map((name) => el("th", { scope: "col", class: "num", "data-tip": trust.legend[name] }, name)),
        ),
      ),
      el("tbody", {}, rows),
    ),
    el(
      "p",
      { class: "note" },
      [`weight: ${WEIGHT}`, ...names.map((name) => `${name}: ${trust.legend[name]}`)].join(". "),
      ". ",
      finite(ceiling)
        ? "Noise ceiling: the best rank correlation that training noise leaves room for."
        : `Noise ceiling: unknown. ${trust.ceiling.reason}`,
    ),
  ];
}

function meter(value, most, strong = false) {
  const width = 64 * Math.max(0, Math.min(1, (finite(value) ? value : 0) / most));
  return svg(
    "svg",
    {
      viewBox: "0 0 64 8",
      width: 64,
      height: 8,
      "aria-hidden": true,
      style: "display: inline; width: 64px; margin-right: 0.5rem",
    },
    svg("rect", { width: 64, height: 8, rx: 4, fill: "var(--faint)" }),
    svg("rect", { width, height: 8, rx: 4, fill: strong ? "var(--accent)" : "var(--dim)" }),
  );
}

function curve(report, words) {
  const found = report.doc.trust.curve;
  const said = [el("h3", {}, "Would more runs help?"), el("p", { class: "note", id: "more" }, words)];
  if (!found) return said;
  const { sizes, mean: middle, low, high } = found;
  const known = sizes.map((_, i) => i).filter((i) => finite(middle[i]));
  if (known.length < 2) return said;
  const width = Math.min(520, widthOf(byId("curve")));
  const height = 190;
  const ceilings = report.doc.trust.ceiling.value.filter((value, t) => finite(value) && report.targets[t].measured);
  const ceiling = ceilings.length ? mean(ceilings) : NaN;
  const [y0, y1] = extent([...known.flatMap((i) => [low[i], high[i]]), finite(ceiling) ? ceiling : low[known[0]]], 0.1);
  const x = scale(0, Math.max(...sizes) * 1.06, 46, width - 12);
  const y = scale(y0, y1, height - 40, 10);
  const line = (values, order) => order.map((i) => `${x(sizes[i])},${y(values[i])}`).join(" ");
  const marks = ticks(y0, y1, 4);
  const parts = [
    yAxis(y, marks, 46, width - 58, tickPlaces(marks)),
    svg("polygon", { points: `${line(high, known)} ${line(low, known.toReversed())}`, fill: "var(--accent-wash)" }),
    svg("polyline", { points: line(middle, known), fill: "none", stroke: "var(--accent)", "stroke-width": 2 }),
    known.map((i) =>
      svg("circle", {
        cx: x(sizes[i]),
        cy: y(middle[i]),
        r: 4,
        fill: "var(--accent)",
        "data-tip": `${sizes[i]} subsets: rank correlation ${number(middle[i])} (${span(low[i], high[i])} over splits)`,
      }),
    ),
    known.map((i) => svg("text", { x: x(sizes[i]), y: height - 24, "text-anchor": "middle" }, String(sizes[i]))),
    svg("text", { x: (46 + width) / 2, y: height - 6, "text-anchor": "middle" }, "distinct subsets learned from"),
  ];
  if (finite(ceiling)) {
    parts.push(
      svg("line", { x1: 46, x2: width - 12, y1: y(ceiling), y2: y(ceiling), class: "zero", "stroke-dasharray": "4 4" }),
      svg("text", { x: width - 14, y: y(ceiling) - 4, "text-anchor": "end" }, "noise ceiling"),
    );
  }
  return [
    ...said,
    canvas(width, height, "Rank correlation on held-out runs by number of runs learned from", parts),
    el(
      "figcaption",
      {},
      `Rank correlation on held-out runs${report.T > 1 ? ", mean over targets" : ""}; the band is the range over random splits.`,
    ),
  ];
}

function worst(report, state, held, actions) {
  const { places } = report.targets[state.target].answer;
  const strange = held
    .filter((one) => finite(one.off))
    .sort((a, b) => b.off - a.off)
    .slice(0, WORST);
  if (!strange.length) return [];
  return [
    el("h3", {}, "Runs that fit worst"),
    tableOf({
      columns: [["run"], ["measured", "num"], ["predicted", "num"], ["stds off", "num"], ["subset", "names"]],
      rows: strange.map((one) => [
        String(one.run + 1),
        number(one.measured, places),
        number(one.predicted, places),
        number(one.off, 1),
        link(() => actions.explore(report.subset(one.run)), report.subsetName(report.subset(one.run), 4)),
      ]),
    }),
    el(
      "p",
      { class: "note" },
      "Rows of the table of runs, counted from 1. Look for a crashed training or a wrong label.",
    ),
  ];
}

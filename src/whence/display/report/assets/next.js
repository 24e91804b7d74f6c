// What to measure next: the suggested runs, to look at, copy and download.

function showNext(report, state, actions) {
  const { next } = report.doc;
  if (next.reason) {
    byId("next-intro").textContent = next.reason;
    fill("suggestions");
    return;
  }
  const { name, answer } = report.targets[state.target];
  const rows = unpack(next.subsets);
  const n = next.subsets.shape[0];
  const middle = unpack(next.predicted);
  const std = unpack(next.std);
  byId("next-intro").textContent =
    `${next.words} The file has a column for each task and empty columns for the outcomes, to fill in.`;
  const columns = [
    ["", "dim wide"],
    ["subset", "names"],
    ["tasks", "num wide"],
    [`predicted ${name}`, "num"],
    ["90% interval", "num wide"],
  ];
  const cells = Array.from({ length: n }, (_, i) => {
    const subset = Float64Array.from(rowOf(rows, next.subsets.shape, i));
    const at = state.target * n + i;
    return [
      String(i + 1),
      link(() => actions.explore(subset), report.subsetName(subset, 10)),
      String(subset.filter((w) => w > 0).length),
      number(middle[at], answer.places),
      span(...ends(middle[at], std[at], report.targets[state.target]), answer.places),
    ];
  });
  fill(
    "suggestions",
    tableOf({ id: "next-table", columns, rows: cells }),
    el(
      "p",
      { class: "tools more" },
      button({ id: "copy-csv" }, () => copyCsv(report, next.csv), "Copy as CSV"),
      button({ id: "download-csv" }, () => download("next.csv", next.csv), "Download next.csv"),
    ),
  );
}

async function copyCsv(report, text) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = false;
  }
  byId("copy-csv").textContent = done ? "Copied" : "Not allowed here: download it";
  report.say(done ? "Copied." : "The browser does not let this page copy; download the file instead.");
  setTimeout(() => (byId("copy-csv").textContent = "Copy as CSV"), 1800);
}

function download(name, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

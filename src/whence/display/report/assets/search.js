// "Best of size k": the subset with the best prediction, all of them tried where they are few, else by swaps.

const SEARCH_EFFORT = 3e6; // kernel values that may be computed to try every subset
const SWAPS = 1000; // tried in a step, of the tasks best dropped and best added
const RANDOM_STARTS = 4;

function binomial(n, k) {
  let total = 1;
  for (let i = 1; i <= Math.min(k, n - k); i++) total = (total * (n - i + 1)) / i;
  return total;
}

// {subset, exact}; `sign` is +1 where higher is better. Null when `stopped()` says that nobody waits any more.
async function bestOfSize(surrogate, tasks, size, sign, ranking, stopped = () => false) {
  const goodness = (position) => sign * surrogate.level(position);
  const empty = surrogate.at(new Float64Array(tasks));
  if (binomial(tasks, size) * surrogate.cost <= SEARCH_EFFORT) {
    return { subset: bestOfAll(surrogate, empty, tasks, size, goodness), exact: true };
  }
  let best = null;
  for (const start of await starts(surrogate, empty, tasks, size, goodness, ranking, stopped)) {
    const position = await swapped(surrogate, start, tasks, goodness, stopped);
    if (!position) return null;
    const value = goodness(position);
    if (best === null || value > best.value) best = { value, position };
  }
  return best && { subset: best.position.subset, exact: false };
}

// The tasks of best score, the best grown from nothing, the best left of everything, and some at random.
async function starts(surrogate, empty, tasks, size, goodness, ranking, stopped) {
  const of = (members) => surrogate.at(Float64Array.from({ length: tasks }, (_, k) => (members.includes(k) ? 1 : 0)));
  const full = surrogate.at(new Float64Array(tasks).fill(1));
  const found = [
    of(ranking.slice(0, size)),
    await changed(surrogate, empty, tasks, size, false, goodness, stopped),
    await changed(surrogate, full, tasks, tasks - size, true, goodness, stopped),
  ];
  const draw = randomSource(1);
  const shuffled = () =>
    ranking
      .map((k) => [draw(), k])
      .sort((a, b) => a[0] - b[0])
      .map(([, k]) => k);
  for (let i = 0; i < RANDOM_STARTS && tasks <= 100; i++) found.push(of(shuffled().slice(0, size)));
  return found.filter((position) => position !== null);
}

// Seeded numbers in [0, 1), so that a button does the same thing every time it is pressed.
function randomSource(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function bestOfAll(surrogate, empty, tasks, size, goodness) {
  let best = { value: -Infinity, subset: null };
  const extend = (position, next, missing) => {
    if (missing === 0) {
      const value = goodness(position);
      if (value > best.value) best = { value, subset: position.subset };
      return;
    }
    for (let k = next; k <= tasks - missing; k++) extend(surrogate.moved(position, k, 1), k + 1, missing - 1);
  };
  extend(empty, 0, size);
  return best.subset;
}

// The positions one task away, best first: [{k, value, position}].
function oneAway(surrogate, position, tasks, inside, goodness) {
  const found = [];
  for (let k = 0; k < tasks; k++) {
    if (position.subset[k] > 0 !== inside) continue;
    const next = surrogate.moved(position, k, inside ? 0 : 1);
    found.push({ k, value: goodness(next), position: next });
  }
  return found.sort((a, b) => b.value - a.value);
}

// Add (or drop) the best task until enough have changed; many at a time where there are hundreds.
async function changed(surrogate, start, tasks, count, inside, goodness, stopped) {
  const step = Math.max(1, Math.floor(tasks / 60));
  let position = start;
  for (let left = count; left > 0; left -= step) {
    if (stopped()) return null;
    const next = oneAway(surrogate, position, tasks, inside, goodness).slice(0, Math.min(step, left));
    for (const { k } of next) position = surrogate.moved(position, k, inside ? 0 : 1);
    await pause();
  }
  return position;
}

// Exchange one task for another while that improves.
async function swapped(surrogate, start, tasks, goodness, stopped) {
  let position = start;
  let value = goodness(position);
  for (;;) {
    const drops = oneAway(surrogate, position, tasks, true, goodness).slice(0, Math.sqrt(SWAPS));
    const adds = oneAway(surrogate, position, tasks, false, goodness).slice(0, SWAPS / drops.length);
    let best = null;
    for (const drop of drops) {
      for (const add of adds) {
        const next = surrogate.moved(drop.position, add.k, 1);
        const reached = goodness(next);
        if (best === null || reached > best.value) best = { value: reached, position: next };
      }
      await pause();
      if (stopped()) return null;
    }
    if (best === null || best.value <= value + 1e-12 * Math.abs(value)) return surrogate.at(position.subset);
    ({ value, position } = best);
  }
}

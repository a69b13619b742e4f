// Three exact verifiers, step by step, and the test of their exits against w(v).

const VERIFIERS = { tev: "TEV", predraw: "predraw and follow", sequential_residual: "sequential residual" };

// A seeded stream of uniforms in [0, 1): the same seed plays the same game everywhere.
function stream(seed) {
  let a = (seed ^ 0x9e3779b9) >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// One play: the steps to show, the exit node, and the bonus token (null: one that was not recorded).
// `missing(v)` lists the recorded missing tokens of v; what they leave of rho(v) is "another token".
function play(verifier, f, missing, random) {
  return { tev: playTev, predraw: playPredraw, sequential_residual: playSequential }[verifier](f, missing, random);
}

function playTev(f, missing, random) {
  const exit = pick(f.nodes, (v) => f.w[v], f.total, random());
  const bonus = drawMissing(f, exit, missing, random() * f.rho[exit]);
  return { exit, bonus, steps: [{ kind: "exit", node: exit }, { kind: "bonus", node: exit, bonus }] };
}

function playPredraw(f, missing, random) {
  const drawn = new Map(f.nodes.map((v) => [v, drawToken(f, v, missing, random())]));
  const steps = [{ kind: "draws", drawn }];
  let node = 0;
  while (drawn.get(node).child !== null) {
    node = drawn.get(node).child;
    steps.push({ kind: "follow", node });
  }
  const bonus = drawn.get(node).token;
  steps.push({ kind: "bonus", node, bonus });
  return { exit: node, bonus, steps };
}

function playSequential(f, missing, random) {
  const steps = [];
  let node = 0;
  for (;;) {
    let rest = 1; // mass of the residual before it is renormalised
    let next = null;
    for (const child of f.kids[node]) {
      const accept = rest > 0 ? Math.min(1, f.edge[child] / rest) : 0;
      const taken = random() < accept;
      steps.push({ kind: "test", node, child, accept, taken, rest });
      if (taken) {
        next = child;
        break;
      }
      rest = Math.max(0, rest - f.edge[child]);
    }
    if (next === null) break;
    node = next;
  }
  const bonus = drawMissing(f, node, missing, random() * f.rho[node]);
  steps.push({ kind: "bonus", node, bonus });
  return { exit: node, bonus, steps };
}

function pick(items, weight, total, u) {
  let left = u * total;
  let last = items[0];
  for (const item of items) {
    const mass = weight(item);
    if (mass <= 0) continue;
    last = item;
    left -= mass;
    if (left < 0) return item;
  }
  return last;
}

function drawToken(f, v, missing, u) {
  let left = u;
  for (const child of f.kids[v]) {
    left -= f.edge[child];
    if (left < 0) return { child, token: f.tokens[child] };
  }
  return { child: null, token: drawMissing(f, v, missing, left) };
}

function drawMissing(f, v, missing, left) {
  for (const { token, p } of missing(v)) {
    left -= p;
    if (left < 0) return token;
  }
  return null;
}

// Pearson's chi-square of exit counts against w; nodes with fewer than 5 expected exits share a bin.
function chiSquare(f, counts, plays) {
  let statistic = 0;
  let bins = 0;
  let expectedRest = 0;
  let seenRest = 0;
  for (const v of f.nodes) {
    const expected = plays * f.w[v];
    const seen = counts.get(v) ?? 0;
    if (expected >= 5) {
      statistic += (seen - expected) ** 2 / expected;
      bins += 1;
    } else {
      expectedRest += expected;
      seenRest += seen;
    }
  }
  if (expectedRest >= 1) {
    statistic += (seenRest - expectedRest) ** 2 / expectedRest;
    bins += 1;
  }
  const freedom = bins - 1;
  return freedom < 1 ? null : { statistic, freedom, p: gammaTail(freedom / 2, statistic / 2) };
}

// Q(a, x), the upper regularised incomplete gamma function.
function gammaTail(a, x) {
  if (x <= 0) return 1;
  const scale = Math.exp(a * Math.log(x) - x - logGamma(a));
  if (x < a + 1) {
    let term = 1 / a;
    let sum = term;
    for (let k = 1; k < 1000 && term > 1e-15 * sum; k++) {
      term *= x / (a + k);
      sum += term;
    }
    return Math.max(0, 1 - scale * sum);
  }
  let b = x + 1 - a;
  let c = 1e300;
  let d = 1 / b;
  let h = d;
  for (let k = 1; k < 1000; k++) {
    const an = -k * (k - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (Math.abs(d * c - 1) < 1e-14) break;
  }
  return scale * h;
}

function logGamma(x) {
  if (x < 12) return logGamma(x + 1) - Math.log(x);
  const y = 1 / (x * x);
  return (x - 0.5) * Math.log(x) - x + 0.9189385332046727 + (1 / 12 - (1 / 360 - y / 1260) * y) / x;
}

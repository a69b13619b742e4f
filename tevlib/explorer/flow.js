// Target flow through a recorded tree: the arithmetic of flow.py, for pruning, what-if and temperature in the browser.

// P, rho, w of every node (null where it is not in the tree), and what each node lost to pruning and dropping.
function flowOf(tree, temperature, stop, budget, edits) {
  const recorded = tree.tokens.length;
  const tokens = tree.tokens.slice();
  const parents = tree.parents.slice();
  const edge = edgeProbabilities(tree, temperature, stop);
  const alive = tokens.map((_, node) => node <= budget);
  for (const [kind, node, token] of edits) {
    if (!alive[node]) throw new Error(`node ${node} is not in the tree`);
    if (kind === "drop") {
      if (node === 0) throw new Error("the root cannot be dropped: it is the last token of the text");
      alive[node] = false;
      for (let v = node + 1; v < tokens.length; v++) alive[v] = alive[v] && alive[parents[v]];
    } else {
      edge.push(probabilityOfMissing(tree, node, token, temperature, stop, tokens, parents, alive, edge));
      tokens.push(token);
      parents.push(node);
      alive.push(true);
    }
  }
  const n = tokens.length;
  const kids = tokens.map(() => []);
  const depth = new Array(n).fill(0);
  for (let v = 1; v < n; v++) {
    kids[parents[v]].push(v);
    depth[v] = depth[parents[v]] + 1;
  }
  const P = new Array(n).fill(null);
  const rho = new Array(n).fill(null);
  const gone = tokens.map(() => new Map());
  P[0] = 1;
  for (let v = 0; v < n; v++) {
    if (!alive[v]) continue;
    const mine = kids[v].filter((u) => alive[u]);
    for (const u of kids[v]) if (!alive[u] && u < recorded) gone[v].set(tokens[u], edge[u]);
    for (const u of mine) {
      gone[v].delete(tokens[u]);
      P[u] = P[v] * edge[u];
    }
    if (!mine.length) {
      rho[v] = 1;
    } else {
      let moved = v < recorded ? tree.rho[stop][v] : 1;
      for (const u of kids[v]) if (u < recorded) moved += edge[u];
      for (const u of mine) moved -= edge[u];
      rho[v] = Math.max(0, moved); // below 0 by rounding only
    }
  }
  const w = P.map((mass, v) => (mass === null ? null : mass * rho[v]));
  const nodes = P.map((_, v) => v).filter((v) => P[v] !== null);
  const coverage = nodes.reduce((sum, v) => sum + (v ? P[v] : 0), 0);
  const exitDepth = nodes.reduce((sum, v) => sum + w[v] * depth[v], 0);
  const total = nodes.reduce((sum, v) => sum + w[v], 0);
  const live = kids.map((below) => below.filter((u) => alive[u]));
  return { tokens, parents, kids: live, edge, P, rho, w, gone, depth, nodes, coverage, exitDepth, total, recorded };
}

function edgeProbabilities(tree, temperature, stop) {
  const n = tree.tokens.length;
  const edge = new Array(n).fill(1);
  if (temperature === 0) {
    for (let u = 1; u < n; u++) edge[u] = tree.argmax[tree.parents[u]] === tree.tokens[u] ? 1 : 0;
    return edge;
  }
  const total = new Array(n).fill(0);
  for (let u = 1; u < n; u++) {
    edge[u] = Math.exp(tree.log_p[u] / temperature - tree.log_z[stop][tree.parents[u]]);
    total[tree.parents[u]] += edge[u];
  }
  for (let u = 1; u < n; u++) {
    const v = tree.parents[u];
    edge[u] *= total[v] > 0 ? (1 - tree.rho[stop][v]) / total[v] : 0;
  }
  return edge;
}

function missingProbability(tree, node, token, temperature, stop) {
  if (temperature === 0) return tree.argmax[node] === token ? 1 : 0;
  const place = tree.missing[node].indexOf(token);
  return Math.exp(tree.missing_log_p[node][place] / temperature - tree.log_z[stop][node]);
}

function probabilityOfMissing(tree, node, token, temperature, stop, tokens, parents, alive, edge) {
  for (let u = 0; u < tokens.length; u++) {
    if (parents[u] !== node || tokens[u] !== token) continue;
    if (alive[u]) throw new Error(`node ${node} already has a child with token ${token}`);
    return edge[u];
  }
  if (node >= tree.tokens.length || !tree.missing[node].includes(token))
    throw new Error(`token ${token} has no recorded probability at node ${node}`);
  return missingProbability(tree, node, token, temperature, stop);
}

// Missing tokens of a node, best first: {token, p, gain = P(v) p_v(a), draft log-probability or null}.
function missingTokens(tree, f, node, temperature, stop) {
  const here = new Set(f.kids[node].map((u) => f.tokens[u]));
  const listed = new Map(f.gone[node]);
  const drafted = new Map();
  if (node < f.recorded)
    tree.missing[node].forEach((token, i) => {
      drafted.set(token, tree.missing_log_q[node][i]);
      if (!here.has(token)) listed.set(token, missingProbability(tree, node, token, temperature, stop));
    });
  return [...listed]
    .map(([token, p]) => ({ token, p, gain: f.P[node] * p, draft: drafted.get(token) ?? null }))
    .sort((a, b) => b.gain - a.gain || a.token - b.token);
}

// The recorded text walked down a tree: accepted nodes, and the token that left the tree (null where the text ends).
function walk(f, text) {
  const path = [0];
  for (const token of text) {
    const next = f.kids[path[path.length - 1]].find((u) => f.tokens[u] === token);
    if (next === undefined) return { path, bonus: token };
    path.push(next);
  }
  return { path, bonus: null };
}

// Tokens of the text from a round on: its own block, then the blocks of the rounds behind it.
function textFrom(answer, round) {
  return answer.rounds.slice(round).flatMap((r) => [...r.path.slice(1).map((v) => r.trees[0].tokens[v]), r.bonus]);
}

// Rows and columns with the added nodes put in: an added child gets a new row below its parent's last one.
function placed(tree, f) {
  const row = tree.layout.row.slice();
  const left = tree.layout.left.slice();
  const width = tree.layout.width.slice();
  const kids = tree.tokens.map(() => []);
  for (let u = 1; u < f.recorded; u++) kids[tree.parents[u]].push(u);
  for (let u = f.recorded; u < f.tokens.length; u++) {
    const v = f.parents[u];
    kids.push([]);
    if (!kids[v].length) {
      row.push(row[v]);
    } else {
      const last = Math.max(...kids[v].map((x) => row[x]));
      for (let x = 0; x < row.length; x++) if (row[x] > last) row[x] += 1;
      row.push(last + 1);
    }
    kids[v].push(u);
    if (f.depth[u] >= left.length) {
      left.push(left[left.length - 1] + width[width.length - 1] + 84);
      width.push(150);
    }
  }
  return { row, left, width, depth: f.depth };
}

function rampPlace(value, largest, log, smallest) {
  if (largest <= smallest) return 0;
  if (!log) return Math.min(Math.max(value / largest, 0), 1);
  if (value <= smallest) return 0;
  return Math.min(Math.log(value / smallest) / Math.log(largest / smallest), 1);
}

function valuesBy(tree, f, by) {
  if (by !== "draft" && by !== "mismatch") return f[by];
  const draft = f.P.map((_, v) => (tree.scores && v < tree.scores.length ? Math.exp(tree.scores[v]) : null));
  return by === "draft" ? draft : draft.map((q, v) => (q === null || f.P[v] === null ? null : q - f.P[v]));
}

function largestBy(values, by) {
  return by === "w" ? Math.max(...values.filter((x) => x !== null)) : 1;
}

// `largest` is what the end of the ramp stands for: the largest w shown, 1 for the others.
function fillOf(scene, value, largest, by, log, theme) {
  if (value === null) return scene.ramps[theme][0];
  if (by === "mismatch") {
    const t = 0.5 - Math.max(-1, Math.min(1, value)) / 2;
    return scene.ramps[theme + "_diverging"][Math.floor(100 * t + 0.5)];
  }
  return scene.ramps[theme][Math.floor(100 * rampPlace(value, largest, log, scene.smallest) + 0.5)];
}

function inkOn(fill) {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const x = parseInt(fill.slice(i, i + 2), 16) / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

// What stands around the tree: identities, text, card of a node, legend, histogram of exits.

const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + "%";
const signed = (x, digits = 4) => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(digits);

function identityTiles(view, facts) {
  const { f } = view;
  const tile = (name, value, note, kind) =>
    h("div", { class: "tx-tile" + (kind ? " " + kind : "") }, h("span", { class: "tx-tile-name" }, name), h("b", {}, value), h("span", { class: "tx-tile-note" }, note));
  const change = facts.base === null ? null : f.coverage - facts.base;
  return [
    tile("Σ w(v)", f.total.toFixed(4), "exits are certain"),
    tile("C_p = Σ P(v)", f.coverage.toFixed(4), change === null ? "draft tokens covered" : `${signed(change)} by what-if`, change === null ? "" : "tx-changed"),
    tile("C_p = Σ w(v)·depth", f.exitDepth.toFixed(4), "the same, by exits (Eq. 6)"),
    tile("ceiling 1 + C_p", (1 + f.coverage).toFixed(4), "tokens a round, at most"),
    tile("this round", String(view.realised), "tokens of the decoded text"),
    tile("rounds so far", facts.meanLength.toFixed(2), `mean; ceilings ${facts.meanCeiling.toFixed(2)}`),
  ];
}

// The text up to the round, its root, and what of the block the shown tree holds.
function textStrip(answer, round, said) {
  const cycle = answer.rounds[round];
  const strip = h("div", { class: "tx-text", dir: "ltr" });
  const piece = (i, kind) => h("span", { class: kind }, answer.pieces[i] ?? "");
  strip.append(h("span", { class: "tx-before" }, answer.pieces.slice(0, cycle.start - 1).join("")), piece(cycle.start - 1, "tx-root"));
  const accepted = said.path.length - 1;
  for (let i = 0; i < accepted; i++) strip.append(piece(cycle.start + i, "tx-accepted"));
  if (said.bonus !== null) strip.append(piece(cycle.start + accepted, "tx-bonus-text"));
  return strip;
}

function nodeCard(scene, view, v, temperature, stop, act) {
  const { f, tree } = view;
  const name = (token) => scene.labels[token] ?? String(token);
  const trail = [];
  for (let u = v; u > 0; u = f.parents[u]) trail.unshift(u);
  const draft = tree.scores && v > 0 && v < tree.scores.length ? Math.exp(tree.scores[v]) : null;
  const rank = v === 0 ? "root: the last token of the text" : v < f.recorded ? `rank ${v} of ${f.recorded - 1} in the builder's order` : "added here";
  const card = h("div", {},
    h("div", { class: "tx-card-token", dir: "ltr" }, name(f.tokens[v])),
    h("div", { class: "tx-muted" }, `${rank} · depth ${f.depth[v]}`),
    h("div", { class: "tx-path", dir: "ltr" }, trail.map((u) => name(f.tokens[u])).join(" ") || "(nothing drafted yet)"));
  const row = (symbol, value, words) => h("tr", {}, h("th", { scope: "row" }, symbol), h("td", { class: "tx-value" }, value), h("td", {}, words));
  card.append(h("table", { class: "tx-facts" },
    row("P", f.P[v].toFixed(4), "target reaches it"),
    row("ρ", f.rho[v].toFixed(4), "of that leaves here"),
    row("w", f.w[v].toFixed(4), "leaves here: P·ρ"),
    draft === null ? null : row("q", draft.toFixed(4), "drafter, for the path"),
    draft === null ? null : row("q − P", signed(draft - f.P[v]), draft > f.P[v] ? "drafter too sure" : "drafter too shy")));
  const listed = missingTokens(tree, f, v, temperature, stop);
  if (listed.length) {
    card.append(h("div", { class: "tx-card-head" }, "Missing below, and what each would gain"));
    const most = Math.max(listed[0].gain, 1e-12);
    const list = h("ol", { class: "tx-missing" });
    for (const { token, gain, draft: q } of listed.slice(0, 8)) {
      const text = `+${gain.toFixed(4)}`;
      const bar = h("span", { class: "tx-gain" });
      bar.style.width = `${(100 * gain) / most}%`;
      const drafted = q === null ? "" : ` The drafter gave it ${percent(Math.exp(q))} here.`;
      const button = h("button", { type: "button", "data-token": token, title: `What if ${name(token)} were in the tree? C_p rises by P(v) p_v(a) = ${text}.${drafted}` },
        bar, h("span", { class: "tx-missing-token", dir: "ltr" }, name(token)), h("span", { class: "tx-value" }, text));
      act.on(button, "click", () => act.add(v, token));
      list.append(h("li", {}, button));
    }
    const rest = f.w[v] - listed.reduce((sum, item) => sum + item.gain, 0);
    card.append(list, h("div", { class: "tx-muted" }, rest > 5e-5 ? `all other tokens together +${rest.toFixed(4)} (not recorded one by one)` : "that is all of w(v)"));
  } else {
    card.append(h("div", { class: "tx-muted tx-gap" }, v >= f.recorded ? "The target has not been asked below this node." : "No missing tokens were recorded here."));
  }
  if (v > 0 && act.editable) {
    const button = h("button", { type: "button", class: "tx-drop" }, "Drop this node");
    act.on(button, "click", () => act.drop(v));
    card.append(button);
  }
  return card;
}

function legend(scene, view, by, log, theme) {
  const ramp = by === "mismatch" ? scene.ramps[theme + "_diverging"].slice().reverse() : scene.ramps[theme];
  const largest = largestBy(view.values, by);
  const bar = h("span", { class: "tx-ramp" });
  bar.style.background = `linear-gradient(90deg, ${ramp.filter((_, i) => i % 10 === 0).join(",")})`;
  const low = by === "mismatch" ? "−1" : log ? "0.0001" : "0";
  return h("div", { class: "tx-legend" },
    h("span", {}, low), bar, h("span", {}, largest.toFixed(2)), h("span", { class: "tx-legend-what" }, scene.colourBy[by]),
    h("span", { class: "tx-key tx-key-edge" }), h("span", {}, "as thick as P(v)"),
    h("span", { class: "tx-key tx-key-taken" }), h("span", {}, "accepted"),
    h("span", { class: "tx-key tx-key-bonus" }), h("span", {}, "bonus token"),
    view.only ? h("span", { class: "tx-key tx-key-only" }) : null, view.only ? h("span", {}, "only in this tree") : null);
}

const ORDER = ["tev", "predraw", "sequential_residual"];

function histogram(scene, f, tally) {
  const rows = f.nodes.slice().sort((a, b) => f.w[b] - f.w[a]).filter((v, i) => i < 3 || (i < 12 && f.w[v] >= 0.002));
  const shown = new Set(rows);
  const rest = f.nodes.filter((v) => !shown.has(v));
  const name = (v) => {
    if (v === 0) return shortLabel(scene, f.tokens[0], 12) + " (root)";
    const text = f.parents[v] === 0 ? shortLabel(scene, f.tokens[v]) : `${shortLabel(scene, f.tokens[f.parents[v]], 9)} ${shortLabel(scene, f.tokens[v], 12)}`;
    return `${f.depth[v] > 2 ? "… " : ""}${text} #${v}`;
  };
  const bins = rows.map((v) => ({ name: name(v), nodes: [v] }));
  if (rest.length) bins.push({ name: `${rest.length} other nodes`, nodes: rest });
  const share = (key, nodes) => (tally[key].plays ? nodes.reduce((sum, v) => sum + (tally[key].counts.get(v) ?? 0), 0) / tally[key].plays : 0);
  const mass = bins.map((bin) => bin.nodes.reduce((sum, v) => sum + f.w[v], 0));
  const most = Math.max(...mass, ...ORDER.flatMap((key) => bins.map((bin) => share(key, bin.nodes))), 0.01);
  const [labelWidth, full, tall] = [232, 330, 24];
  const chart = g("svg", { viewBox: `0 0 ${labelWidth + full + 60} ${bins.length * tall + 8}`, class: "tx-histogram", role: "img", "aria-label": "Exits of the three verifiers beside w(v)" });
  bins.forEach((bin, i) => {
    const top = 4 + i * tall;
    chart.append(g("text", { class: "tx-bin", x: labelWidth - 8, y: top + 10, dy: "0.35em" }, bin.name));
    ORDER.forEach((key, j) =>
      chart.append(g("rect", { class: `tx-v-${key}`, x: labelWidth, y: top + 6 * j + 1, width: ((full * share(key, bin.nodes)) / most).toFixed(2), height: 5, "data-bin": i, "data-verifier": key })));
    const at = labelWidth + (full * mass[i]) / most;
    chart.append(g("line", { class: "tx-w", x1: at, x2: at, y1: top - 1, y2: top + 20 }), g("text", { class: "tx-bin-w", x: Math.max(at, ...ORDER.map((key) => labelWidth + (full * share(key, bin.nodes)) / most)) + 5, y: top + 10, dy: "0.35em" }, mass[i].toFixed(3)));
  });
  return chart;
}

function tallyTable(f, tally) {
  const table = h("table", { class: "tx-tally" }, h("tr", {}, ...["verifier", "plays", "mean tokens", "χ² against w", "p"].map((name) => h("th", {}, name))));
  for (const key of ORDER) {
    const { counts, plays } = tally[key];
    let tokens = 0;
    for (const [v, count] of counts) tokens += count * (f.depth[v] + 1);
    const test = plays ? chiSquare(f, counts, plays) : null;
    table.append(h("tr", { "data-verifier": key, "data-plays": plays, "data-p": test ? test.p : "" },
      h("td", {}, h("span", { class: `tx-swatch tx-v-${key}` }), VERIFIERS[key]), h("td", { class: "tx-value" }, plays.toLocaleString("en")),
      h("td", { class: "tx-value" }, plays ? (tokens / plays).toFixed(3) : "–"),
      h("td", { class: "tx-value" }, test ? `${test.statistic.toFixed(1)} on ${test.freedom}` : "–"), h("td", { class: "tx-value" }, test ? test.p.toFixed(2) : "–")));
  }
  return table;
}

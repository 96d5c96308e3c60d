// The operators' page: asks /ui/data each second and shows the answer. What the server sends is
// only ever set as text.
"use strict";

const EVERY_MS = 1000;
const ANSWER_MS = 5000;
const KEY = "lockstep-key";
const HEATS = ["replays", "padding", "audit"];
const at = (id) => document.getElementById(id);
let shown = null;
let answeredAt = null;
let heat = "replays";

// Numbers as people read them.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const percent = (part, of) => (of > 0 ? `${((100 * part) / of).toFixed(1)}%` : "-");
const bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${n >= 100 || unit === 0 ? n.toFixed(0) : n.toFixed(1)} ${units[unit]}`;
};
const span = (s) => {
  if (s < 0.0995) return `${(1000 * s).toPrecision(2)} ms`;
  if (s < 1) return `${(1000 * s).toFixed(0)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${s.toFixed(0)} s`;
  if (s < 7200) return `${(s / 60).toFixed(0)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(0)} h` : `${(s / 86400).toFixed(0)} days`;
};

// An element with text or children; `data` becomes data- attributes.
function make(tag, { cls, text, data } = {}, ...children) {
  const element = document.createElement(tag);
  if (cls) element.className = cls;
  if (text !== undefined) element.textContent = text;
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

// Words with what stands between backticks as code.
const words = (text) => text.split("`").map((piece, i) => (i % 2 ? make("code", { text: piece }) : piece));

// Shows a number in words, and keeps it whole beside them.
function say(id, text, value) {
  const element = at(id);
  element.textContent = text;
  if (value !== undefined) element.dataset.value = value;
}

function bar(element, parts, label) {
  element.setAttribute("aria-label", label);
  const piece = ([cls, share]) => {
    const part = make("i", { cls });
    part.style.setProperty("--share", Math.min(Math.max(share, 0), 1) || 0);
    return part;
  };
  element.replaceChildren(...parts.map(piece));
}

// A line of values, newest at the right; `most` is the top of the picture.
function line(svg, rows, most) {
  const width = Math.max(rows[0].values.length - 1, 1);
  const top = Math.max(most, 1e-9);
  svg.setAttribute("viewBox", `0 0 ${width} 100`);
  const paths = rows.flatMap(({ cls, values, area }) => {
    if (values.length < 2) return [];
    const d = values.map((v, x) => `${x ? "L" : "M"}${x} ${(100 - (96 * v) / top).toFixed(2)}`).join("");
    const path = (kind, shape) => {
      const p = document.createElementNS("http://www.w3.org/2000/svg", "path");
      p.setAttribute("class", kind);
      p.setAttribute("d", shape);
      return p;
    };
    const own = [path(cls, d)];
    return area ? [path("area", `${d}L${values.length - 1} 100L0 100Z`), ...own] : own;
  });
  svg.replaceChildren(...paths);
}

// The first thing that a person sees: is all well, and if not, what is wrong and what to do.
function verdict(cls, mark, title, line, alarms = []) {
  at("verdict").className = cls;
  say("mark", mark);
  for (const [id, text] of [["verdict-title", title], ["verdict-words", line]]) {
    if (at(id).textContent !== text) say(id, text);
  }
  const item = (a) => make("li", { cls: a.level, data: { alarm: a.alarm } },
    make("b", { text: `${a.alarm.replaceAll("_", " ")}: ` }), a.words,
    make("span", { cls: "means", text: a.meaning }),
    make("span", { cls: "do" }, "To do: ", ...words(a.action)));
  at("alarms").replaceChildren(...alarms.map(item));
  const colours = { well: "1f9d5c", look: "d99a1c", act: "d3372c", gone: "d3372c", waiting: "888888" };
  const icon = `data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle cx='8' cy='8' r='7' fill='%23${colours[cls]}'/%3E%3C/svg%3E`;
  if (at("icon").href !== icon) at("icon").href = icon;
}

function judge({ engine: e, alarms, model_name: name }) {
  const c = e.counters;
  const rate = `${e.generated_tokens_per_second.toFixed(0)} tok/s`;
  const captured = percent(c.decode_steps_captured, c.decode_steps);
  const load = `${e.running} running, ${e.queued || "none"} waiting, ${rate}`;
  if (alarms.length === 0) {
    verdict("well", "✓", "All is well", `Serving. ${load}. ${c.decode_steps ? `${captured} of decode steps captured.` : "No step yet."}`);
  } else {
    const act = alarms.filter((a) => a.level === "act").length;
    const things = (n) => (n === 1 ? "One thing" : `${n} things`);
    const look = alarms.length - act;
    const now = `${things(act)} to do now${look ? `, ${look} to look at` : ""}`;
    verdict(act ? "act" : "look", "!", act ? now : `${things(look)} to look at`, `${e.health[0].toUpperCase()}${e.health.slice(1)}. ${load}.`, alarms);
  }
  const sign = alarms.length === 0 ? "OK" : `! ${alarms[0].alarm.replaceAll("_", " ")}`;
  document.title = `${sign} · ${rate} · ${name}`;
}

function tiles({ engine: e, history: h }) {
  const c = e.counters;
  const seconds = h.tokens_per_second.length;
  const most = Math.max(0, ...h.tokens_per_second);
  say("rate", e.generated_tokens_per_second.toFixed(1), e.generated_tokens_per_second);
  line(at("rate-line"), [{ cls: "line", values: h.tokens_per_second, area: true }], most);
  say("rate-note", seconds ? `last ${span(seconds)}, most ${most.toFixed(0)}` : "no history yet");
  say("running", whole.format(e.running), e.running);
  say("queued", whole.format(e.queued), e.queued);
  at("queued").parentElement.classList.toggle("none", e.queued === 0);
  const top = Math.max(1, ...h.running, ...h.queued);
  line(at("load-line"), [{ cls: "line", values: h.running, area: true }, { cls: "second", values: h.queued }], top);
  say("load-note", `up to ${whole.format(e.running_max)} run, ${whole.format(e.queued_max)} wait`);
  const eager = c.decode_steps - c.decode_steps_captured;
  say("captured", percent(c.decode_steps_captured, c.decode_steps), c.decode_steps_captured);
  bar(at("captured-bar"), [["", c.decode_steps_captured / c.decode_steps], ["warn", eager / c.decode_steps]], `${eager} decode steps ran eagerly`);
  say("captured-note", `${whole.format(c.decode_steps_captured)} of ${whole.format(c.decode_steps)}, ${whole.format(eager)} eager`);
  const fullest = e.pools.reduce((a, b) => (a && a.usage >= b.usage ? a : b), null);
  if (fullest) {
    const cached = fullest.pages_cached / fullest.pages_total;
    say("pool", percent(fullest.usage, 1), fullest.pages_used);
    bar(at("pool-bar"), [["", fullest.usage], ["cached", cached]], `${percent(fullest.usage, 1)} used`);
    say("pool-note", `${whole.format(fullest.tokens_total)} tokens fit, ${percent(cached, 1)} cached`);
  }
  const mismatches = e.audit.parts.reduce((n, p) => n + p.mismatches, 0);
  const checks = e.audit.parts.reduce((n, p) => n + p.audits, 0);
  const clean = e.audit.rate === 0 ? "off" : checks === 0 ? "not yet" : "clean";
  say("mismatches", mismatches === 0 ? clean : `${whole.format(mismatches)} differ`, mismatches);
  at("mismatches").classList.toggle("bad", mismatches > 0);
  const audited = e.audit.parts.find((p) => p.part === "twin");
  say("audit-note", e.audit.rate === 0 ? "no step is compared" : `one step in ${whole.format(e.audit.rate)}, ${whole.format(audited.audits)} steps compared so far`, audited.audits);
  say("generation", whole.format(e.generation), e.generation);
  const other = e.generations.find((g) => g.generation !== e.generation && !["retired", "rejected"].includes(g.state));
  say("generation-note", other ? `${other.generation} is ${other.state}` : `${whole.format(c.flips)} flips, ${whole.format(c.generations_rejected)} rejected`);
}

// A bucket's share of what the colour shows, from 0 to 1, with words; null where nothing is known.
function heatOf(b, most) {
  const rows = b.live_rows + b.padded_rows;
  if (heat === "replays") {
    const steps = b.replays + b.eager_steps;
    return steps ? [Math.log1p(steps) / Math.log1p(most), short.format(steps)] : null;
  }
  if (heat === "padding") return rows ? [b.padded_rows / rows, percent(b.padded_rows, rows)] : null;
  return b.audit_age_s === null ? null : [Math.min(b.audit_age_s / 120, 1), span(b.audit_age_s)];
}

function cellNote(b) {
  const rows = b.live_rows + b.padded_rows;
  const age = b.audit_age_s === null ? "not audited yet" : `last audited ${span(b.audit_age_s)} ago`;
  return `${b.bucket} (${b.tokens} token, ${b.seqs} sequence, ${b.logit_rows} logit rows), ${b.mode}: `
    + `${whole.format(b.replays)} replays, ${whole.format(b.eager_steps)} eager steps, `
    + `${percent(b.padded_rows, rows)} padding, ${whole.format(b.audits)} audits, `
    + `${whole.format(b.audit_mismatches)} mismatches, ${age}`;
}

let pointed = null;
function note(name) {
  pointed = name;
  const b = shown && shown.engine.buckets.find((one) => one.bucket === name);
  if (b) say("cell-note", cellNote(b));
}

// Rows that are as full as each other, where the last one would else be left half empty.
function fill(box, count) {
  const [cell, gap] = [62, 5];
  const fit = Math.max(1, Math.floor((box.clientWidth + gap) / (cell + gap)));
  const columns = Math.ceil(count / Math.ceil(count / fit)) || 1;
  box.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
}

function cells(id, buckets, most) {
  const box = at(id);
  const names = buckets.map((b) => b.bucket).join(" ");
  if (box.dataset.names !== names) {
    box.dataset.names = names;
    box.replaceChildren(...buckets.map((b) => {
      const cell = make("button", { data: { bucket: b.bucket } }, make("b"), make("span"));
      cell.type = "button";
      for (const event of ["pointerenter", "focus", "click"]) cell.addEventListener(event, () => note(b.bucket));
      return cell;
    }));
  }
  buckets.forEach((b, i) => {
    const cell = box.children[i];
    const found = heatOf(b, most);
    cell.className = `cell ${b.mode}`;
    cell.style.setProperty("--heat", found ? found[0].toFixed(3) : 0);
    cell.children[0].textContent = b.decode ? b.seqs : b.bucket;
    cell.children[1].textContent = b.mode === "quarantined" ? "out" : found ? found[1] : "-";
    cell.setAttribute("aria-label", cellNote(b));
    Object.assign(cell.dataset, {
      mode: b.mode, replays: b.replays, eager: b.eager_steps, live: b.live_rows,
      padded: b.padded_rows, audits: b.audits, age: b.audit_age_s ?? "",
    });
  });
}

function buckets({ engine: e }) {
  const most = Math.max(1, ...e.buckets.map((b) => b.replays + b.eager_steps));
  const decode = e.buckets.filter((b) => b.decode);
  cells("cells-decode", decode, most);
  fill(at("cells-decode"), decode.length);
  cells("cells-prefill", e.buckets.filter((b) => !b.decode), most);
  say("scale-low", heat === "audit" ? "just now" : "0");
  say("scale-high", { replays: `${short.format(most)} steps, log scale`, padding: "100%", audit: "2 min or more" }[heat]);
  if (pointed) note(pointed);
}

function pools({ engine: e }) {
  at("pools").replaceChildren(...e.pools.map((p) => {
    const free = p.pages_total - p.pages_used - p.pages_cached;
    const strip = make("div", { cls: "bar" });
    strip.setAttribute("role", "img");
    bar(strip, [["", p.usage], ["cached", p.pages_cached / p.pages_total]], `${percent(p.usage, 1)} used`);
    return make("div", { cls: "pool", data: { pool: p.name, used: p.pages_used, cached: p.pages_cached, total: p.pages_total } },
      make("p", {}, make("span", { cls: "name", text: p.name === "full" ? "KV (full attention)" : p.name }), ` ${percent(p.usage, 1)} used`),
      strip,
      make("p", { cls: "note", text: `${whole.format(p.pages_used)} used, ${whole.format(p.pages_cached)} cached, ${whole.format(free)} free of ${whole.format(p.pages_total)} pages of ${p.page_tokens} tokens, ${bytes(p.bytes_total)}` }));
  }));
}

const row = (data, ...texts) => make("tr", { data }, ...texts.map((t, i) => make("td", { cls: i ? "n" : "", text: t })));

// The bin in which the middle one of a histogram's counts lies.
function median({ bins, steps }) {
  let below = 0;
  for (const [bound, n] of bins) {
    below += n;
    if (2 * below >= steps) return bound === null ? "long" : `≤ ${span(bound)}`;
  }
  return "-";
}

function steps({ engine: e }) {
  const c = e.counters;
  at("steps").replaceChildren(...["decode", "prefill"].map((kind) => {
    const captured = c[`${kind}_steps_captured`];
    const times = e.step_seconds[kind];
    const longest = times.steps ? span(times.longest_s) : "-";
    return row({ kind }, kind, whole.format(captured), whole.format(c[`${kind}_steps`] - captured), median(times), longest);
  }));
  const reasons = Object.entries(e.eager_steps).filter(([, n]) => n > 0);
  const rows = reasons.map(([reason, n]) => row({ reason, value: n }, reason.replaceAll("_", " "), whole.format(n)));
  at("eager").replaceChildren(...(rows.length ? rows : [row({}, "none did")]));
}

function generations({ engine: e }) {
  const item = (g) => {
    const last = g.moves[g.moves.length - 1];
    const v = g.evidence;
    const changed = Object.entries(g.changed).map(([name, k]) => `${name} ${k.from} → ${k.to}`);
    const facts = [
      `${v.captured_buckets} of ${v.buckets} buckets captured`, `${whole.format(g.steps)} steps served`,
      v.compared_bits ? `${short.format(v.compared_bits)} bits compared, ${whole.format(v.differing_bits)} differ` : null,
      v.canary_rows ? `${short.format(v.canary_rows)} canary rows` : null,
      `${short.format(v.proof_pairs)} pairs of accesses proven`, `arena ${bytes(g.arena_bytes)}`,
      g.gap.longest_ms > 0 ? `longest gap ${span(g.gap.longest_ms / 1000)}` : null,
      g.watched_for_s > 0 ? `watched for ${span(g.watched_for_s)} more` : null,
    ];
    return make("div", { cls: "generation", data: { generation: g.generation, state: g.state } },
      make("p", {}, make("b", { text: `Generation ${g.generation}` }), make("span", { cls: `chip ${g.state}`, text: g.state }),
        last ? ` ${span(Math.max(e.uptime_s - last.uptime_s, 0))} ago` : ""),
      ...(changed.length ? [make("p", { text: changed.join(", ") })] : []),
      ...(g.reason ? [make("p", { text: g.reason })] : []),
      make("p", { cls: "note", text: facts.filter(Boolean).join(" · ") }));
  };
  const newest = [...e.generations].reverse().slice(0, 12);
  const none = make("p", { cls: "empty", text: `Generation ${e.generation} serves.` });
  at("generations").replaceChildren(...(newest.length ? newest.map(item) : [none]));
}

function audit({ engine: e }) {
  at("parts").replaceChildren(...e.audit.parts.map((p) => {
    const cells = row({ part: p.part, audits: p.audits, mismatches: p.mismatches },
      p.part, whole.format(p.audits), bytes(p.bytes), p.sweeps === null ? "-" : whole.format(p.sweeps), whole.format(p.mismatches));
    cells.lastChild.classList.toggle("bad", p.mismatches > 0);
    return cells;
  }));
  const found = e.audit.evidence.map((text) => make("li", { text }));
  at("evidence").className = found.length ? "" : "empty";
  at("evidence").replaceChildren(...(found.length ? found : [make("li", { text: "Nothing was found." })]));
}

function totals({ engine: e }) {
  const c = e.counters;
  const list = [
    ["output tokens", "generated_tokens", c.generated_tokens], ["prompt tokens", "prompt_tokens", c.prompt_tokens],
    ["from the prefix cache", "cached_tokens", c.cached_tokens], ["requests admitted", "admitted", c.admitted],
    ["finished", "finished", c.finished], ["cancelled", "cancelled", c.cancelled], ["failed", "failed", c.failed],
    ["refused", "refused", c.refused_queue_full + c.refused_other], ["preemptions", "preemptions", c.preemptions],
    ["steps", "steps", c.steps], ["flips", "flips", c.flips], ["manifest checks", "manifest_checks", c.manifest_checks],
  ];
  at("totals").replaceChildren(...list.map(([text, name, n]) =>
    make("div", {}, make("dt", { text }), make("dd", { text: whole.format(n), data: { total: name, value: n } }))));
}

function show(data) {
  shown = data;
  answeredAt = Date.now();
  const { engine: e } = data;
  say("model", data.model_name);
  say("facts", `${e.model.quantization} on ${e.device.name} (${e.device.isa}, ${e.device.threads} threads), up ${span(e.uptime_s)}, lockstep ${data.version}`);
  at("login").hidden = true;
  at("body").hidden = false;
  at("body").classList.remove("stale");
  for (const part of [judge, tiles, buckets, pools, steps, generations, audit, totals]) part(data);
  say("updated", `Updated ${new Date().toLocaleTimeString()}, each second.`);
  document.body.dataset.answers = Number(document.body.dataset.answers ?? 0) + 1;
}

function askForKey(line) {
  verdict("waiting", "…", "A key is needed", "This server shows its state to those who have its API key.");
  at("login").hidden = false;
  at("body").hidden = true;
  say("login-words", line);
}

function silent(why) {
  const since = answeredAt ? `for ${span((Date.now() - answeredAt) / 1000)}` : "yet";
  at("body").classList.add("stale");
  document.title = "! no answer · Lockstep";
  verdict("gone", "!", `No answer ${since}`, `${why} Is the process there, and is the network? What is below is old.`);
}

async function ask() {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  let answer;
  try {
    answer = await fetch("ui/data", { headers, cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (answer.status === 401) {
      sessionStorage.removeItem(KEY);
      askForKey(key ? "That key is not the right one." : "The key stays in this tab and goes to this server only.");
      return false;
    }
    if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
    show(await answer.json());
  } catch (e) {
    silent(e.name === "TimeoutError" ? "It took too long." : e.message.startsWith("The server") ? e.message : "It cannot be reached.");
  }
  return true;
}

async function run() {
  // A page that nobody looks at asks nothing; it asks again as soon as it is looked at.
  while (document.hidden || (await ask())) {
    await new Promise((wake) => setTimeout(wake, EVERY_MS));
  }
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value.trim());
  at("key").value = "";
  run();
});
for (const input of document.querySelectorAll("input[name=heat]")) {
  input.addEventListener("change", () => {
    heat = input.value;
    input.closest(".card").classList.remove(...HEATS);
    input.closest(".card").classList.add(heat);
    if (shown) buckets(shown);
  });
}
run();

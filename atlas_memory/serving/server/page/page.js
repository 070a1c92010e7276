"use strict";
// The page of `atlas serve`: it uses nothing but the server it came from.

const LEVELS = [0.25, 1, 2, 3, 4.5, 6, 8, 10, 13]; // bits at which the next of ten shades begins
const find = (id) => document.getElementById(id);
let memories = [];
let shown = null; // id of the memory whose surprise is shown
let forking = null; // id of the memory to be forked
let asking = null; // AbortController of the answers that run
let demonstrating = null; // AbortController of the demo that runs

// ---- the server ---------------------------------------------------------------------------------

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function call(method, path, body, signal) {
  const options = { method, headers: headers(), signal };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  if (response.ok) return response;
  if (response.status === 401) find("access").hidden = false;
  const told = await response.json().catch(() => ({}));
  throw new Error(told.error ? told.error.message : `the server answered ${response.status}`);
}

async function json(method, path, body) {
  return (await call(method, path, body)).json();
}

// The events of a stream, as they come.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// Posts a body, shows how far the server has come, and gives its last event.
async function watched(place, things, path, body, signal) {
  const [bar, words] = find(place).children;
  const shows = (share, text) => { bar.value = share; words.textContent = text; };
  shows(0, "waiting for the server");
  find(place).hidden = false;
  let last = null;
  let begin = null;
  try {
    for await (const event of events(await call("POST", path, { ...body, stream: true }, signal))) {
      last = event;
      if (!event.object.endsWith(".progress")) continue;
      begin = begin || { time: performance.now(), read: event.read };
      shows(event.read / event.total, progressed(event, begin, things));
    }
  } finally {
    find(place).hidden = true;
  }
  return last;
}

// "1,024 of 4,096 tokens, 3 s left"; how long one takes is not known before the first of them.
function progressed({ read, total }, begin, things) {
  const done = `${read.toLocaleString("en")} of ${total.toLocaleString("en")} ${things}`;
  if (read <= begin.read) return done;
  const seconds = ((performance.now() - begin.time) / 1000 / (read - begin.read)) * (total - read);
  const minutes = Math.floor(seconds / 60);
  return `${done}, ${minutes ? `${minutes} min ` : ""}${Math.ceil(seconds % 60)} s left`;
}

// ---- parts of the page -----------------------------------------------------------------------------

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function button(text, label, act) {
  const made = element("button", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function tell(error) {
  const notice = find("notice");
  notice.hidden = !error;
  notice.textContent = error ? error.message : "";
}

// Runs what a button does: the button waits, and what goes wrong is said in words.
async function work(control, act) {
  tell(null);
  if (control) control.disabled = true;
  try {
    await act();
  } catch (error) {
    if (error.name !== "AbortError") tell(error);
  } finally {
    if (control) control.disabled = false;
  }
}

function called(memory) {
  return memory.name || `text of ${memory.position} tokens`;
}

// ---- memories -----------------------------------------------------------------------------------

async function refresh() {
  memories = (await json("GET", "v1/memories")).data;
  find("empty").hidden = memories.length > 0;
  find("memories").replaceChildren(...memories.map(entry));
  choices(find("memory-a"), "no memory");
  choices(find("memory-b"), "nothing");
  if (!memories.some((memory) => memory.id === shown)) find("picture").hidden = true;
}

function entry(memory) {
  const item = element("li");
  item.dataset.id = memory.id;
  const name = called(memory);
  const bits = memory.surprise.toFixed(2);
  item.append(element("strong", name), element("p", `${memory.position} tokens, ${bits} bits per token`, "quiet"));
  const row = element("div", undefined, "row");
  const unknown = element("span", "Its file does not say how surprising its text was.", "quiet");
  row.append(
    memory.shown
      ? button("Surprise", `Surprise of ${name}`, (e) => work(e.target, () => picture(memory.id)))
      : unknown,
    button("Fork", `Fork ${name}`, () => openFork(memory)),
    button("Download", `Download ${name}`, (e) => work(e.target, () => download(memory))),
    button("Delete", `Delete ${name}`, (e) => work(e.target, () => forget(memory))),
  );
  item.append(row);
  return item;
}

function choices(select, nothing) {
  const chosen = select.value;
  const none = element("option", nothing);
  none.value = "";
  const options = memories.map((memory) => {
    const option = element("option", called(memory));
    option.value = memory.id;
    return option;
  });
  select.replaceChildren(none, ...options);
  if (memories.some((memory) => memory.id === chosen)) select.value = chosen;
}

async function readText() {
  const body = { text: find("text").value, name: find("name").value };
  const made = await watched("reading", "tokens", "v1/memories", body);
  await refresh();
  find("memory-a").value = made.id;
  await picture(made.id);
}

function openFork(memory) {
  forking = memory.id;
  find("fork-of").textContent = called(memory);
  find("fork-name").value = `${called(memory)}, forked`;
  find("forker").hidden = false;
  find("fork-text").focus();
}

async function fork() {
  const body = { text: find("fork-text").value, name: find("fork-name").value };
  const parent = forking;
  const made = await watched("forking", "tokens", `v1/memories/${parent}/fork`, body);
  find("forker").hidden = true;
  find("fork-text").value = "";
  await refresh();
  find("memory-a").value = parent;
  find("memory-b").value = made.id;
  if (made.shown) await picture(made.id);
}

async function download(memory) {
  const response = await call("GET", `v1/memories/${memory.id}/file`);
  const link = element("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = `${called(memory).replace(/[^\w-]+/g, "-")}.memory`;
  link.click();
  URL.revokeObjectURL(link.href);
}

async function forget(memory) {
  await json("DELETE", `v1/memories/${memory.id}`);
  await refresh();
}

// ---- surprise -----------------------------------------------------------------------------------

async function picture(id) {
  const told = await json("GET", `v1/memories/${id}/surprise`);
  shown = id;
  const spans = told.pieces.map(([text, bits]) => {
    const level = bits === null ? 0 : LEVELS.filter((least) => bits >= least).length;
    const span = element("span", text, `h${level}`);
    span.dataset.bits = bits === null ? "" : bits.toFixed(2);
    return span;
  });
  find("surprise").replaceChildren(...spans);
  find("surprise-of").textContent = `of ${called(memories.find((memory) => memory.id === id))}`;
  find("picture").hidden = false;
}

function point(span) {
  const before = find("surprise").querySelector(".here");
  if (before) before.classList.remove("here");
  span.classList.add("here");
  const letter = JSON.stringify(span.textContent);
  const bits = span.dataset.bits;
  find("bits").textContent = bits ? `${letter}: ${bits} bits` : `${letter}: nothing predicted it`;
  span.scrollIntoView({ block: "nearest" });
}

function step(event) {
  const moves = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const here = find("surprise").querySelector(".here");
  const next = here ? here[moves[event.key]] : find("surprise").firstElementChild;
  if (next) point(next);
}

// ---- asking -------------------------------------------------------------------------------------

async function answer(pane, memory, signal) {
  const figure = find(`pane-${pane}`);
  const output = find(`answer-${pane}`);
  const known = memories.find((one) => one.id === memory);
  const caption = figure.querySelector("figcaption");
  caption.textContent = known ? called(known) : "no memory";
  output.replaceChildren(element("span", find("prompt").value, "asked"));
  const body = {
    prompt: find("prompt").value,
    max_tokens: Number(find("tokens").value),
    temperature: Number(find("temperature").value),
    stream: true,
    stream_options: { include_usage: true },
  };
  if (memory) body.memory = memory;
  const begin = performance.now();
  for await (const event of events(await call("POST", "v1/completions", body, signal))) {
    for (const choice of event.choices) if (choice.text) output.append(element("span", choice.text));
    if (event.usage) {
      const seconds = (performance.now() - begin) / 1000;
      const rate = event.usage.completion_tokens / seconds;
      caption.textContent += `: ${event.usage.completion_tokens} tokens, ${rate.toFixed(1)} per second`;
    }
  }
}

async function ask() {
  const other = find("memory-b").value;
  asking = new AbortController();
  find("stop").disabled = false;
  find("pane-b").hidden = !other;
  const both = [answer("a", find("memory-a").value, asking.signal)];
  if (other) both.push(answer("b", other, asking.signal));
  try {
    await Promise.all(both);
  } finally {
    asking.abort();
    find("stop").disabled = true;
  }
}

// ---- the demo -----------------------------------------------------------------------------------

async function openDemo() {
  if (find("demo-words-known").textContent) return;
  const { names, verbs, places } = await json("GET", "v1/demo");
  const known = `Names: ${names.join(", ")}. Verbs: ${verbs.join(", ")}. Places: ${places.join(", ")}.`;
  find("demo-words-known").textContent = known;
}

async function demonstrate() {
  const body = { words: Number(find("demo-words").value), seed: Number(find("demo-seed").value) };
  const facts = find("demo-facts").value.trim();
  const question = find("demo-ask").value.trim();
  if (facts) body.facts = facts;
  if (question) body.ask = question;
  demonstrating = new AbortController();
  find("demo-stop").disabled = false;
  try {
    found(await watched("demonstrating", "words", "v1/demo", body, demonstrating.signal));
  } finally {
    find("demo-stop").disabled = true;
  }
}

function found(result) {
  const one = result.answers[0];
  find("demo-question").textContent = one.question;
  find("demo-figures").replaceChildren(
    figure("the truth", one.truth),
    figure("the memory", one.answer, one.answer === one.truth),
    figure(`a window of ${result.window} words`, one.window_answer, one.window_answer === one.truth),
    figure("the memory's state, which does not grow", size(result.state_bytes)),
    figure("the cache of a Transformer of this width", size(result.cache_bytes)),
    figure("words", result.words.toLocaleString("en"), undefined,
      `${Math.round(result.words_per_second).toLocaleString("en")} a second, ${result.admitted.toLocaleString("en")} admitted`),
  );
  find("demo-hidden").replaceChildren(...one.facts.map((fact) => {
    const item = element("li", fact.text);
    item.prepend(element("span", fact.position.toLocaleString("en"), "quiet"));
    return item;
  }));
  strip(result.picture.parts, one.facts, result.words);
  const { facts, others } = result.picture;
  find("demo-passages").replaceChildren(
    element("h3", "Around the facts"), ...facts.map(passage),
    element("h3", "What else it admitted"), ...(others.length ? others.map(passage) : [element("p", "Nothing.")]),
  );
  find("demo-result").hidden = false;
}

function figure(name, value, right, more) {
  const made = element("div");
  const shown = element("dd", value, right === undefined ? "" : right ? "right" : "wrong");
  const note = right === undefined ? more : right ? "right" : "wrong";
  if (note) shown.append(" ", element("small", note));
  made.append(element("dt", name), shown);
  return made;
}

function size(bytes) {
  for (const [unit, least] of [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) {
    if (bytes >= least) return `${Number((bytes / least).toPrecision(3))} ${unit}`;
  }
  return `${bytes} B`;
}

function strip(parts, facts, words) {
  const wide = 1000 / parts.length;
  const bars = parts.map((gate, n) => (gate ? `M${n * wide} 100v${-80 * gate}h${wide}v${80 * gate}z` : ""));
  find("demo-gates").setAttribute("d", bars.join(""));
  const marks = facts.map((fact) => `M${(1000 * fact.position) / words - 6} 0h12l-6 14z`);
  find("demo-marks").setAttribute("d", marks.join(""));
}

function passage({ position, words, gates, hidden }) {
  const made = element("p", undefined, "passage");
  made.append(element("b", `from word ${position.toLocaleString("en")}`));
  words.forEach((word, n) => {
    const level = gates[n] > 0 ? `open h${Math.max(1, Math.min(9, Math.round(9 * gates[n])))}` : "";
    const span = element("span", word, `${hidden[n] ? "fact " : ""}${level}`.trim());
    if (gates[n] > 0) span.title = gates[n].toFixed(3);
    made.append(span, " ");
  });
  return made;
}

// ---- everything together ------------------------------------------------------------------------

// The part of the page that the address names.
function turn() {
  const demo = location.hash === "#demo";
  find("demo").hidden = !demo;
  find("memories-of-texts").hidden = demo;
  find(demo ? "to-memories" : "to-demo").removeAttribute("aria-current");
  find(demo ? "to-demo" : "to-memories").setAttribute("aria-current", "page");
  if (demo) work(null, openDemo);
}

async function start() {
  await refresh();
  const models = (await json("GET", "v1/models")).data;
  find("model").textContent = models.map((model) => model.id).join(", ");
  find("access").hidden = true;
}

function submits(form, control, act) {
  find(form).addEventListener("submit", (event) => {
    event.preventDefault();
    if (!find(control) || !find(control).disabled) work(find(control), act);
  });
  find(form).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find(form).requestSubmit();
  });
}

submits("reader", "read", readText);
submits("forker", "fork", fork);
submits("asker", "ask", ask);
submits("demonstrator", "demonstrate", demonstrate);
find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", find("token").value);
  work(null, start);
});
find("file").addEventListener("change", (event) => work(null, async () => {
  const file = event.target.files[0];
  if (!file) return;
  find("text").value = await file.text();
  find("name").value = file.name;
}));
find("fork-cancel").addEventListener("click", () => { find("forker").hidden = true; });
find("stop").addEventListener("click", () => asking && asking.abort());
find("demo-stop").addEventListener("click", () => demonstrating && demonstrating.abort());
find("surprise").addEventListener("keydown", step);
find("surprise").addEventListener("pointermove", (event) => {
  if (event.target.dataset && "bits" in event.target.dataset) point(event.target);
});
window.addEventListener("hashchange", turn);
work(null, start);
turn();

// Flow: one flow over the last hour, who copies it, and what to do with it.
import { Action, Badge, Figure, Problem, RatesNote, Table, Verdict, api, bytesRate, count, duration, hrefOf, html, may, partitionName, size, toneOf, useAnswer } from "/ui/static/kit.js";
import { Chart, Legend } from "/ui/static/chart.js";

const REFRESH_MS = 5000;
const tasksText = (tasks) => Object.entries(tasks).map(([state, number]) => `${number} ${state.toLowerCase()}`).join(", ") || "no tasks";

function Actions({ flow, caller, done }) {
  if (!may(caller, "OPERATE")) return null;
  const path = api.connector(flow);
  const state = flow.states.source?.state;
  const put = (verb) => () => api.send("PUT", `${path}/${verb}`);
  const isHeld = state === "PAUSED" || state === "STOPPED";
  return html`<div class="buttons">
    ${isHeld
      ? html`<${Action} label="Resume" title=${`Resume ${flow.name}?`} run=${put("resume")} done=${done}>
          <p>The copy continues where it ended.</p><//>`
      : html`<${Action} label="Pause" title=${`Pause ${flow.name}?`} run=${put("pause")} done=${done}>
          <p>The copy ends after what was sent, and the lag grows until you resume it. Tasks stay assigned.</p><//>`}
    ${state !== "STOPPED" && html`<${Action} label="Stop" tone="bad" title=${`Stop ${flow.name}?`} run=${put("stop")} done=${done}>
      <p>The copy ends, its tasks are removed until you resume it, and the lag grows. Offsets can be altered meanwhile.</p><//>`}
    <${Action} label="Restart" title=${`Restart ${flow.name}?`} done=${done}
      run=${() => api.send("POST", `${path}/restart?includeTasks=true&onlyFailed=false`)}>
      <p>The connector and all its tasks start again. The copy continues where it ended, without gaps or duplicates.</p><//>
    ${flow.states.source?.tasks.FAILED > 0 && html`<${Action} label="Restart failed tasks" title="Restart what failed?" done=${done}
      run=${() => api.send("POST", `${path}/restart?includeTasks=true&onlyFailed=true`)}>
      <p>Only what failed starts again. Remove the cause first, or it fails again.</p><//>`}
  </div>`;
}

/** What a chart, a table and a sum lack. */
function Silent({ workers }) {
  const silent = workers.filter((one) => one.problem);
  if (!silent.length) return null;
  return html`<p class="lost" role="status">Not counted here: ${silent.map((one) => html`<span key=${one.worker_id}>worker ${one.worker_id}. ${one.problem} </span>`)}</p>`;
}

function History({ data }) {
  const { history, histories, workers } = data;
  const chart = (title, key, format) => html`<${Chart} title=${title} times=${history.at_ms} values=${history[key]} format=${format}
    parts=${histories.map((one) => ({ name: one.worker_id, values: one[key] }))} />`;
  return html`<section class="card"><h2>Last hour</h2><${Silent} workers=${workers} />
    <${Legend} names=${histories.map((one) => one.worker_id)} />
    <div class="charts">
      ${chart("Lag, records", "lag_records", count)}
      ${chart("Lag, age of the oldest", "lag_ms", duration)}
      ${chart("Records a second", "records_per_s", count)}
      ${chart("Bytes a second", "bytes_per_s", (value) => `${size(value)}/s`)}
    </div></section>`;
}

const Workers = ({ workers }) => html`<section class="card"><h2>Workers</h2>
  <${Table} caption="Workers of the flow" rows=${workers} empty="No worker has a task of this flow." columns=${[
    ["Worker", (one) => html`${one.worker_id || "not assigned"}${one.is_this ? " (this one)" : ""}${one.problem && html`<br /><small>${one.problem}</small>`}`],
    ["Tasks", (one) => tasksText(one.tasks)],
    ["Records/s", (one) => count(one.records_per_s), true],
    ["Bytes/s", (one) => (one.bytes_per_s === null ? "unknown" : `${size(one.bytes_per_s)}/s`), true],
  ]} /></section>`;

const Furthest = ({ flow, rows }) => html`<section class="card"><h2>Partitions with the greatest lag</h2>
  <${Table} caption="Partitions with the greatest lag" rows=${rows} empty="No partition has a lag." columns=${[
    ["Partition", (one) => `${one.topic}-${one.partition}`],
    ["Lag", (one) => count(one.records), true],
    ["Oldest", (one) => duration(one.ms), true],
    ["State", (one) => html`<${Badge} tone=${one.is_stopped ? "bad" : one.state === "copying" ? "good" : "warn"}>${one.state}<//>`],
    ["Reason", (one) => one.reason],
  ]} />
  <p><a href=${hrefOf(flow, "partitions")}>All partitions, with a search</a></p></section>`;

const Spark = ({ sparks }) => html`<section class="card"><h2>Spark</h2>
  ${sparks.map((spark) => html`<${Problem} error=${spark.problem && `${spark.worker_id}: ${spark.problem}`} />`)}
  <${Table} caption="Spark of each worker" rows=${sparks} empty="No worker runs Spark for this flow." columns=${[
    ["Worker", (spark) => spark.worker_id],
    ["Runs at", (spark) => spark.place || "not started"],
    ["Epoch", (spark) => (spark.epoch === null ? "none" : count(spark.epoch)), true],
    ["Slots in use", (spark) => `${count(spark.used)}${spark.slots === null ? "" : ` of ${count(spark.slots)}`}`, true],
  ]} /></section>`;

const Batches = ({ batches, workers }) => html`<section class="card"><h2>Batches since the tasks began</h2><${Silent} workers=${workers} />
  <${Table} caption="Batches by kind and reason" rows=${batches} empty="No batch was copied yet." columns=${[
    ["Kind", (one) => one.kind],
    ["Reason", (one) => one.reason],
    ["Batches", (one) => count(one.count), true],
  ]} /></section>`;

function Errors({ flow, failed }) {
  const connectors = Object.entries(flow.states).flatMap(([part, state]) =>
    (state?.errors || []).filter((each) => part !== "source" || each.of === "connector").map((each) => ({ ...each, part })));
  const rows = [...connectors.map((one) => [`${one.part} ${one.of}`, one.reason]), ...failed.map((one) => [`task ${one.task}`, one.reason])];
  if (!rows.length) return null;
  return html`<section class="card"><h2>Errors</h2><${Table} caption="What failed, and why" rows=${rows.slice(0, 20)}
    columns=${[["Part", (row) => row[0]], ["Reason", (row) => row[1]]]} /></section>`;
}

export default function Flow({ flow, caller }) {
  const { data, error, reload } = useAnswer(() => api.report(flow, "details"), [flow.name], REFRESH_MS);
  const seen = flow.overview;
  const verdict = seen?.verdict;
  return html`<header class="title"><h1>${flow.name}</h1>
      <${Badge} tone=${toneOf(verdict?.urgency)}>${verdict?.state || "starting"}<//></header>
    <${Problem} error=${flow.error || error} />
    <${Actions} flow=${flow} caller=${caller} done=${reload} />
    ${seen && html`<section class="card">
      <dl class="figures">
        <${Figure} name="Rate">${count(seen.rates.records_per_s)} <small>records/s</small><//>
        <${Figure} name="Bytes">${bytesRate(seen)}<//>
        <${Figure} name="Lag">${count(seen.lag.records)} <small>records</small><//>
        <${Figure} name="Oldest waits">${duration(seen.lag.ms)}<//>
        <${Figure} name="Most wait in">${seen.lag.furthest ? partitionName(seen.lag.furthest) : "none"}<//>
        <${Figure} name="Tasks">${tasksText(flow.states.source?.tasks || {})}<//>
      </dl>
      <${RatesNote} rates=${seen.rates} />
      <${Verdict} flow=${flow} /></section>`}
    ${data ? html`
      <${Errors} flow=${flow} failed=${data.failed} />
      <${History} data=${data} />
      <${Furthest} flow=${flow} rows=${data.furthest} />
      <${Workers} workers=${data.workers} />
      <div class="grid"><${Batches} batches=${data.batches} workers=${data.workers} /><${Spark} sparks=${data.sparks} /></div>`
      : html`<p class="quiet">Reading the details...</p>`}`;
}

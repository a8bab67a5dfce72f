// Flow: one flow over the last hour, who copies it, and what to do with it.
import { Action, Badge, Figure, Problem, Table, Verdict, api, count, duration, hrefOf, html, may, partitionName, size, toneOf, useAnswer } from "/ui/static/kit.js";
import { Chart } from "/ui/static/chart.js";

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

/** What a heading adds where figures are not of the whole flow. */
const ofHere = ({ here, all }) => (here < all ? ` of the ${here} of ${all} tasks on this worker` : "");

function History({ history, tasks }) {
  const at = history.at_ms.filter((each) => each !== null);
  return html`<section class="card"><h2>Last hour${ofHere(tasks)}</h2><div class="charts">
    <${Chart} title="Lag, records" times=${at} values=${history.lag_records} format=${count} />
    <${Chart} title="Lag, age of the oldest" times=${at} values=${history.lag_ms} format=${duration} />
    <${Chart} title="Records a second" times=${at} values=${history.records_per_s} format=${count} />
    <${Chart} title="Bytes a second" times=${at} values=${history.bytes_per_s} format=${(value) => `${size(value)}/s`} />
  </div></section>`;
}

const Workers = ({ workers, tasks }) => html`<section class="card"><h2>Workers</h2>
  <${Table} caption="Workers of the flow" rows=${workers} empty="No worker has a task of this flow." columns=${[
    ["Worker", (one) => html`${one.worker_id || "not assigned"}${one.is_this ? " (this one)" : ""}`],
    ["Tasks", (one) => tasksText(one.tasks)],
    ["Records/s", (one) => (one.is_this ? count(one.records_per_s) : "on its page"), true],
    ["Bytes/s", (one) => (one.is_this ? `${size(one.bytes_per_s)}/s` : "on its page"), true],
  ]} />
  ${tasks.here < tasks.all && html`<p class="quiet">This worker runs ${tasks.here} of ${tasks.all} tasks. The last hour, batches and
    Spark are those of its tasks; the verdict, the lag and partitions are those of the whole flow.</p>`}</section>`;

const Furthest = ({ flow, rows }) => html`<section class="card"><h2>Partitions with the greatest lag</h2>
  <${Table} caption="Partitions with the greatest lag" rows=${rows} empty="No partition has a lag." columns=${[
    ["Partition", (one) => `${one.topic}-${one.partition}`],
    ["Lag", (one) => count(one.records), true],
    ["Oldest", (one) => duration(one.ms), true],
    ["State", (one) => html`<${Badge} tone=${one.is_stopped ? "bad" : one.state === "copying" ? "good" : "warn"}>${one.state}<//>`],
    ["Reason", (one) => one.reason],
  ]} />
  <p><a href=${hrefOf(flow, "partitions")}>All partitions, with a search</a></p></section>`;

const Spark = ({ spark }) => html`<section class="card"><h2>Spark of this worker</h2>
  <${Problem} error=${spark.problem} />
  <dl class="figures">
    <${Figure} name="Runs at">${spark.place || "not started"}<//>
    <${Figure} name="Epoch">${spark.epoch === null ? "none here" : count(spark.epoch)}<//>
    <${Figure} name="Slots in use">${count(spark.used)}${spark.slots === null ? "" : ` of ${count(spark.slots)}`}<//>
  </dl></section>`;

const Batches = ({ batches, tasks }) => html`<section class="card"><h2>Batches since the tasks began${ofHere(tasks)}</h2>
  <${Table} caption="Batches by kind and reason" rows=${batches} empty="No batch was copied here yet." columns=${[
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
        <${Figure} name="Bytes">${seen.rates.bytes_per_s === null ? "unknown" : `${size(seen.rates.bytes_per_s)}/s`}<//>
        <${Figure} name="Lag">${count(seen.lag.records)} <small>records</small><//>
        <${Figure} name="Oldest waits">${duration(seen.lag.ms)}<//>
        <${Figure} name="Most wait in">${seen.lag.furthest ? partitionName(seen.lag.furthest) : "none"}<//>
        <${Figure} name="Tasks">${tasksText(flow.states.source?.tasks || {})}<//>
      </dl>
      <${Verdict} flow=${flow} /></section>`}
    ${data ? html`
      <${Errors} flow=${flow} failed=${data.failed} />
      <${History} history=${data.history} tasks=${data.tasks} />
      <${Furthest} flow=${flow} rows=${data.furthest} />
      <${Workers} workers=${data.workers} tasks=${data.tasks} />
      <div class="grid"><${Batches} batches=${data.batches} tasks=${data.tasks} /><${Spark} spark=${data.spark} /></div>`
      : html`<p class="quiet">Reading the details...</p>`}`;
}

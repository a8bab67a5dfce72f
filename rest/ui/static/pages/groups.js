// Groups: where the consumer groups of a flow are on both clusters, and whether they are synced into the target.
import { Badge, Figure, Problem, Search, Table, count, duration, hrefOf, html, useAnswer, useState } from "/ui/static/kit.js";

const EVERY_MS = 10000;
const TOP = 20;

const ageOf = (at, ms) => (ms === null ? "none yet" : `${duration(Math.max(at - ms, 0))} ago`);

/** How many of a group's partitions are translated exactly. */
function Translation({ row }) {
  if (!row.partition_count) return html`<span class="quiet">nothing mirrored</span>`;
  if (!row.by_syncs) return html`<${Badge} tone="good">exact<//>`;
  return html`<${Badge} tone="warn">${row.exact ? `${row.by_syncs} of ${row.partition_count} by offset syncs` : "by offset syncs"}<//>`;
}

const Synced = ({ row }) =>
  row.synced
    ? html`<${Badge} tone="good">synced<//>`
    : html`<div><${Badge} tone=${row.needs_attention ? "warn" : "quiet"}>not synced<//>
        <div class="quiet">${row.why_not_synced}</div></div>`;

const State = ({ name }) =>
  name ? html`<${Badge} tone=${name === "Empty" ? "quiet" : "good"}>${name === "Empty" ? "no members" : name.toLowerCase()}<//>` : html`<span class="quiet">not there</span>`;

function Partitions({ flow, api, group }) {
  const [search, setSearch] = useState("");
  const answer = useAnswer(
    () => api.report(flow, "groups", { part: "checkpoint", group, search, top: 50 }), [group, search], EVERY_MS);
  const row = answer.data?.groups[0];
  const columns = [
    [`On ${flow.source}`, (one) => `${one.topic}-${one.partition}`],
    ["Position", (one) => one.offset, true],
    ["Lag", (one) => count(one.source_lag), true],
    [`On ${flow.target}`, (one) => `${one.to_topic}-${one.to_partition}`],
    ["Position", (one) => (one.old === null ? html`<span class="quiet">none</span>` : one.old), true],
    ["Lag", (one) => (one.target_lag === null ? "" : count(one.target_lag)), true],
    ["Continues at", (one) => one.new, true],
    ["Found by", (one) => html`<${Badge} tone=${one.by === "offset syncs" ? "warn" : "good"}>${one.by}<//>`],
  ];
  return html`<section class="card" aria-label=${`Group ${group}`}>
    <header><h2>${group}</h2>
      ${row && html`<${Translation} row=${row} /><${Synced} row=${row} />`}</header>
    <${Problem} error=${answer.error} />
    ${row && html`
      <dl class="figures">
        <${Figure} name=${`Lag on ${flow.source}`}>${count(row.source_lag)}<//>
        <${Figure} name=${`Lag on ${flow.target}`}>${row.not_on_target === row.partition_count ? "no position" : count(row.target_lag)}<//>
        <${Figure} name=${`Consumers on ${flow.source}`}><${State} name=${row.source_state} /><//>
        <${Figure} name=${`Consumers on ${flow.target}`}><${State} name=${row.target_state} /><//>
        <${Figure} name="Last checkpoint">${ageOf(answer.data.at_ms, row.checkpoint_ms)}<//>
      </dl>
      ${row.findings.map((each) => html`<p class="quiet">Note: ${each}</p>`)}
      <${Search} label="Topic" value=${search} onSearch=${setSearch} />
      <${Table} caption=${`Partitions of ${group}`} columns=${columns} rows=${row.partitions} empty="No mirrored partition." />
      ${row.partitions.length < row.partition_count && !search &&
        html`<p class="quiet">The ${row.partitions.length} partitions with the highest lag of ${row.partition_count}.</p>`}
      <div class="buttons"><a class="button" href=${`${hrefOf(flow, "move")}?group=${encodeURIComponent(group)}`}>Preview a move</a></div>`}
    ${answer.data && !row && html`<p class="quiet">Cluster ${flow.source} has no group ${group} now.</p>`}
    ${!answer.data && !answer.error && html`<p class="quiet">Reading both clusters...</p>`}
  </section>`;
}

export default function Groups({ flow, api }) {
  const [search, setSearch] = useState("");
  const [open, setOpen] = useState(null);
  const answer = useAnswer(() => api.report(flow, "groups", { part: "checkpoint", search, top: TOP }), [search], EVERY_MS);
  const found = answer.data;
  const columns = [
    ["Group", (row) => html`<button class="link" aria-expanded=${open === row.group}
        onClick=${() => setOpen(open === row.group ? null : row.group)}>${row.group}</button>`],
    [`Lag on ${flow.source}`, (row) => count(row.source_lag), true],
    [`Lag on ${flow.target}`, (row) => (row.not_on_target === row.partition_count ? html`<span class="quiet">no position</span>` : count(row.target_lag)), true],
    ["Translation", (row) => html`<${Translation} row=${row} />`],
    ["Synced", (row) => html`<${Synced} row=${row} />`],
    ["Last checkpoint", (row) => ageOf(found.at_ms, row.checkpoint_ms)],
  ];
  if (!flow.connectors.checkpoint)
    return html`<h1>Groups</h1><${Problem} error=${`${flow.name} has no MirrorCheckpointConnector on this worker, so groups are not translated.`} />`;
  return html`<h1>Groups</h1>
    <p>Where consumers are on cluster ${flow.source}, and where they continue on cluster ${flow.target}.
      ${found && html` Sync of positions into ${flow.target}: ${found.sync}.`}</p>
    <${Search} label="Group" value=${search} onSearch=${setSearch} />
    <${Problem} error=${answer.error} />
    ${!found && !answer.error && html`<p class="quiet">Reading both clusters...</p>`}
    ${open && html`<${Partitions} key=${open} flow=${flow} api=${api} group=${open} />`}
    ${found && html`<section class="card">
      <${Table} caption="Groups with the highest lag" columns=${columns} rows=${found.groups}
        empty=${search ? `No group with offsets has ${search} in its name.` : `No group of cluster ${flow.source} has committed an offset.`} />
      <p class="quiet">${found.groups.length} of ${count(found.matching)} groups${found.read < found.matching
        ? `, out of the first ${found.read} by name; search to see others`
        : ""}. First those that need attention, then those with the highest lag.</p>
    </section>`}`;
}

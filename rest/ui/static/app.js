// The shell: finds the page of the address, reads who asks, listens to the worker's events, and draws the frame.
import { html, render, useErrorBoundary } from "/ui/static/vendor/preact.js";
import { Problem, api, hrefOf, isAsking, useAnswer, useEffect, useRef, useState } from "/ui/static/kit.js";

/** Pages of one flow, in order: name, title. A page without a file in pages/ is not listed. */
const PAGES = [
  ["flow", "Flow"],
  ["partitions", "Partitions"],
  ["groups", "Groups"],
  ["move", "Move"],
  ["changes", "Changes"],
  ["verify", "Verify"],
];
const THEMES = ["auto", "light", "dark"];
const RECONNECT_MS = 3000;
const loaded = new Map();

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** `{page, flow}` of the address; `#/flow/us->eu/groups` is the page groups of the flow us->eu. */
function route() {
  const [first, name, page] = location.hash.replace(/^#\/?/, "").split("?")[0].split("/").map(decoded);
  return first === "flow" && name ? { page: page || "flow", flow: name } : { page: "overview", flow: null };
}

function useRoute() {
  const [at, setAt] = useState(route());
  useEffect(() => {
    const changed = () => setAt(route());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return at;
}

/**
 * The newest event of the worker, and whether it still answers. A page that is not seen gets none, because a browser has
 * six connections for all pages of a worker.
 */
function useLive() {
  const [state, setState] = useState({ live: null, isLost: false });
  useEffect(() => {
    let events = null;
    let timer = 0;
    const open = () => {
      events = new EventSource("/ui/events");
      // What a dialog is about stays the same while it is open.
      events.onmessage = (event) => isAsking() || setState({ live: JSON.parse(event.data), isLost: false });
      events.onerror = () => {
        setState((before) => ({ ...before, isLost: true }));
        // The browser gives up after any answer but 200, such as the 404 of a worker that is starting.
        if (events.readyState === EventSource.CLOSED) timer = setTimeout(open, RECONNECT_MS);
      };
    };
    const seen = () => {
      clearTimeout(timer);
      events?.close();
      if (!document.hidden) open();
    };
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => {
      document.removeEventListener("visibilitychange", seen);
      clearTimeout(timer);
      events?.close();
    };
  }, []);
  return state;
}

/** Remember the theme, or return it; browsers that keep nothing refuse both. */
function kept(theme) {
  try {
    if (theme) localStorage.setItem("theme", theme);
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function useTheme() {
  const [theme, setTheme] = useState(kept() || "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    kept(theme);
  }, [theme]);
  return [theme, () => setTheme((before) => THEMES[(THEMES.indexOf(before) + 1) % THEMES.length])];
}

function Page({ name, ...given }) {
  const [component, setComponent] = useState(null);
  const [failed, setFailed] = useState(null);
  const [error, resetError] = useErrorBoundary((defect) => console.error(defect));
  useEffect(() => {
    resetError();
    setFailed(null);
    if (!loaded.has(name)) loaded.set(name, import(`/ui/static/pages/${name}.js`));
    let isOver = false;
    loaded.get(name).then(
      (module) => isOver || setComponent(() => module.default),
      () => {
        loaded.delete(name);
        if (!isOver) setFailed(new Error(`The page ${name} cannot be loaded. Reload it in the browser.`));
      },
    );
    return () => (isOver = true);
  }, [name]);
  if (error) return html`<${Problem} error=${`The page ${name} failed: ${error.message}`} />`;
  if (failed) return html`<${Problem} error=${failed} />`;
  return component ? html`<${component} ...${given} />` : html`<p class="quiet">Loading...</p>`;
}

function Help({ dialog, pages }) {
  const keys = [
    ["0", "Overview"],
    ...pages.map(([, title], index) => [String(index + 1), `${title} of the flow`]),
    ["/", "Search"],
    ["t", "Light or dark"],
    ["?", "This help"],
  ];
  return html`<dialog ref=${dialog} aria-label="Keys"><form method="dialog">
    <h2>Keys</h2>
    <dl class="keys">${keys.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <div class="buttons"><button class="main">Close</button></div>
  </form></dialog>`;
}

function App() {
  const { page, flow: name } = useRoute();
  const { live, isLost } = useLive();
  // Again after a restart of the worker, which may have other users and pages.
  const me = useAnswer(() => api.get("/ui/api/me"), [isLost]);
  const [theme, nextTheme] = useTheme();
  const help = useRef(null);
  const flows = live ? Object.values(live.flows) : [];
  const flow = flows.find((each) => each.name === name);
  const current = flow || (flows.length === 1 ? flows[0] : null);
  const pages = PAGES.filter(([each]) => me.data?.pages.includes(each));

  useEffect(() => {
    const title = [...PAGES, ["overview", "Overview"]].find(([each]) => each === page)?.[1];
    document.title = `${name ? `${name}: ` : ""}${title || page} - Heliograph`;
  }, [page, name]);
  useEffect(() => {
    const pressed = (event) => {
      const isTyping = event.target.closest("input, textarea, select, dialog");
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const index = Number(event.key) - 1;
      if (event.key === "0") location.hash = "#/";
      else if (current && pages[index]) location.hash = hrefOf(current, pages[index][0]);
      else if (event.key === "t") nextTheme();
      else if (event.key === "?") help.current.showModal();
      else if (event.key === "/") document.querySelector("[data-search]")?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });

  const link = (href, title, isHere) => html`<a href=${href} aria-current=${isHere ? "page" : null}>${title}</a>`;
  const content = () => {
    if (me.error && (!me.data || [401, 403].includes(me.error.status))) return html`<${Problem} error=${me.error} />`;
    if (!me.data || !live) return html`<p class="quiet">Reading the flows...</p>`;
    if (live.error) return null;
    if (name && !flow) return html`<${Problem} error=${`This worker knows no flow ${name}.`} />`;
    return html`<${Page} name=${page} key=${`${page} ${name}`} flow=${flow} api=${api} caller=${me.data} live=${live} />`;
  };
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    }}>Skip to the page</a>
    <header>
      <a class="name" href="#/"><img src="/ui/static/icon.svg" alt="" width="22" height="22" />Heliograph</a>
      <nav aria-label="Pages">
        ${link("#/", "Overview", page === "overview")}
        ${current && pages.map(([each, title]) => link(hrefOf(current, each), title, flow && page === each))}
      </nav>
      <div class="tools">
        ${me.data && html`<span class="caller" title="Who you are, and your role">${me.data.name} (${me.data.role.toLowerCase()})</span>`}
        <button onClick=${nextTheme} title="Light or dark (t)">${theme}</button>
        <button onClick=${() => help.current.showModal()} title="Keys (?)" aria-label="Keys">?</button>
      </div>
    </header>
    ${isLost && html`<p class="lost" role="status">No news from the worker: it does not answer, or too many pages are open. What you see is old; the page connects again by itself.</p>`}
    ${live?.error && html`<${Problem} error=${live.error} />`}
    <main id="main" tabindex="-1">
      ${flow && page !== "flow" && html`<p class="crumb">Flow ${flow.name}</p>`}
      ${content()}
    </main>
    <footer>${me.data && `Heliograph, Kafka Connect API ${me.data.version}`}</footer>
    <${Help} dialog=${help} pages=${current ? pages : []} />`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);

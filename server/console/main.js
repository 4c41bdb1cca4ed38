// Puts the parts of the page together.
import { accessAnew } from "./access.js";
import { refreshAdapters, startAdapters } from "./adapters.js";
import { apiKey, onKeyWanted, refusalOf, setApiKey } from "./api.js";
import { $, ask, el } from "./dom.js";
import { startOverview } from "./overview.js";
import { startPlayground, tryAdapter } from "./playground.js";
import { refreshTargets } from "./targets.js";
import { refreshJobs, startTraining } from "./training.js";
import { startUpload } from "./upload.js";
import { watch } from "./watch.js";

const kThemes = { auto: ["Auto", "as the system has them"], light: ["Light", "light"], dark: ["Dark", "dark"] };

function startTheme(redraw) {
  const button = $("theme-button");
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = kThemes[theme][0];
    button.setAttribute("aria-label", `Colours: ${kThemes[theme][1]}`);
    redraw();
  };
  let theme = localStorage.getItem("lorad-theme");
  if (!(theme in kThemes)) theme = "auto";
  show(theme);
  button.addEventListener("click", () => {
    const names = Object.keys(kThemes);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    localStorage.setItem("lorad-theme", theme);
    show(theme);
  });
}

function startKey() {
  const askForKey = async () => {
    const input = el("input", { type: "password", autocomplete: "off", value: apiKey() });
    const key = await ask({
      title: "API key", confirm: "Keep",
      body: [el("label", { class: "field" }, "Sent as a bearer token with every request; forgotten when this tab is closed", input)],
      read: () => input.value.trim(),
      check: refusalOf,
    });
    if (key !== null) {
      setApiKey(key);
      accessAnew();
      refreshTargets();
      refreshAdapters();
      refreshJobs();
    }
  };
  $("key-button").addEventListener("click", askForKey);
  // Asked for by itself once for each key that does not do, and not while another question is open.
  let refused = null;
  onKeyWanted(() => {
    if (refused === apiKey() || $("dialog").open) return;
    refused = apiKey();
    askForKey();
  });
}

$("dialog-cancel").addEventListener("click", () => $("dialog").close("cancel"));
startPlayground();
startUpload();
startAdapters({ onTry: tryAdapter });
startTraining({ onTry: tryAdapter });
startKey();
startTheme(startOverview(() => {
  refreshTargets();
  refreshAdapters();
}));

// Events come in bursts; the lists are read once for each.
let soon = null;
watch(() => {
  soon ??= setTimeout(() => {
    soon = null;
    refreshTargets();
    refreshAdapters();
  }, 150);
});

// Runs before the page is painted, so that a chosen theme does not flash.
(() => {
  const root = document.documentElement;
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const changed = () => document.dispatchEvent(new Event("themechange"));
  system.addEventListener("change", changed);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
      changed();
    });
  });
})();

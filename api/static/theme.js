// Light and dark theme. Runs before the page is painted, so that a chosen theme does not flash.
(() => {
  const root = document.documentElement;
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const notify = () => document.dispatchEvent(new Event("themechange"));
  systemDark.addEventListener("change", notify);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const isDark = root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches;
      root.dataset.theme = isDark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
      notify();
    });
  });
})();

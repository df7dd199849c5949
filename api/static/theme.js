// Runs before the page is painted, so that a chosen theme does not flash.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
      document.documentElement.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("theme", document.documentElement.dataset.theme);
      document.dispatchEvent(new Event("themechange"));
    });
  });
})();

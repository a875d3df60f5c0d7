// Optional: every page works without it. It is no inline script, so that a strict CSP can stay strict.
"use strict";
(() => {
    const sheet = document.getElementById("dl-keys");
    if (!sheet) {
        return;
    }
    const ROWS = "#result_list tbody tr, .dl-groups > li, .dl-list > li, .dl-table tbody tr";
    const OFF = "deadletter.keys.off";
    const open = document.getElementById("dl-keys-open");
    const toggle = document.getElementById("dl-keys-switch");
    // Moved by j and k. A page that updates itself replaces its rows, so the number is kept as well.
    let chosen = -1;

    const isOff = () => {
        try {
            return localStorage.getItem(OFF) === "1";
        } catch {
            return false; // no storage: the keys cannot be turned off for longer than the page
        }
    };
    let off = isOff();

    const shown = (element) => element.getClientRects().length > 0;
    const rows = () => [...document.querySelectorAll(ROWS)].filter(
        (row) => shown(row) && row.querySelector("a[href]"));
    const link = (row) => row.querySelector("th a[href], h2 a[href], h3 a[href]") || row.querySelector("a[href]");

    // The row with the focus, else the row that j or k chose.
    const current = () => {
        const all = rows();
        const at = all.findIndex((row) => row.contains(document.activeElement));
        return at >= 0 ? all[at] : all[chosen];
    };

    const move = (step) => {
        const all = rows();
        if (!all.length) {
            return;
        }
        const at = all.indexOf(current());
        chosen = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1);
        const target = link(all[chosen]);
        target.focus();
        all[chosen].scrollIntoView({ block: "nearest" });
    };

    // A key never acts by itself: it follows a link or presses a button that asks first.
    const press = (key) => {
        const row = current();
        const inside = row?.querySelector(`[data-press="${key}"]`);
        const target = inside || document.querySelector(`[data-press="${key}"]`);
        if (!target || !shown(target)) {
            return;
        }
        const box = inside ? null : row?.querySelector(".dl-one");
        if (box) {
            box.checked = true;
        }
        target.click();
    };

    const keys = {
        j: () => move(1),
        k: () => move(-1),
        o: () => {
            const row = current();
            if (row) {
                link(row).click();
            }
        },
        r: () => press("r"),
        e: () => press("e"),
        a: () => press("a"),
        "?": () => sheet.showModal(),
    };

    const isTyping = (element) => element.isContentEditable || (
        element.matches("input, select, textarea") &&
        !element.matches("[type=checkbox], [type=radio], [type=submit], [type=button]"));

    document.addEventListener("keydown", (event) => {
        const act = Object.hasOwn(keys, event.key) ? keys[event.key] : null;
        if (!act || event.ctrlKey || event.metaKey || event.altKey || event.repeat && "rea?".includes(event.key)) {
            return;
        }
        if (sheet.open || isTyping(event.target) || off && event.key !== "?") {
            return;
        }
        event.preventDefault();
        act();
    });

    const tell = () => {
        toggle.textContent = off ? toggle.dataset.on : toggle.dataset.off;
    };
    toggle.addEventListener("click", () => {
        off = !off;
        try {
            localStorage.setItem(OFF, off ? "1" : "0");
        } catch {
            // As above.
        }
        tell();
    });
    open.addEventListener("click", () => sheet.showModal());
    open.hidden = false;
    tell();
})();

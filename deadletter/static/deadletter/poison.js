// Optional: every page works without it. It is no inline script, so that a strict CSP can stay strict.
"use strict";
(() => {
    const all = document.querySelector(".dl-all");
    if (all) {
        all.hidden = false;
        all.addEventListener("change", () => {
            document.querySelectorAll(".dl-one").forEach((box) => { box.checked = all.checked; });
        });
    }

    if (navigator.clipboard) {
        document.querySelectorAll(".dl-copy").forEach((button) => {
            button.hidden = false;
            button.addEventListener("click", () => navigator.clipboard.writeText(button.dataset.copy));
        });
    }

    // The page of a job reloads its progress until the job is over.
    const job = document.getElementById("dl-job");
    const follow = async () => {
        if (!job || job.querySelector("[data-over]")) {
            return;
        }
        // Not while a button in it has the focus: replacing it would lose the focus.
        if (!document.hidden && !job.contains(document.activeElement)) {
            try {
                const answer = await fetch(job.dataset.part, { credentials: "same-origin" });
                if (answer.ok && !answer.redirected) {
                    const text = await answer.text();
                    job.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
                }
            } catch {
                // The next request may succeed.
            }
        }
        setTimeout(follow, 2000);
    };
    setTimeout(follow, 2000);
})();

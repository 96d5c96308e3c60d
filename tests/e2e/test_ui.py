"""The operators' page in a real browser: what it shows under load is what /metrics says, and what
a model calls itself is text there, whatever it is."""

import threading
import time
import unittest
from urllib.parse import urlsplit

from harness import browser, client, metrics, probes, servers

HOSTILE = (
    "<img src=x onerror=\"window.pwned=1\">'\"><script>window.pwned=1</script>"
    "<svg onload=window.pwned=1>${window.pwned=1}</h1>"
)

# Every number of the page that /metrics has too, as (place on the page, metric).
TOTALS = {
    "generated_tokens": "lockstep_generated_tokens_total", "steps": "lockstep_steps_total",
    "prompt_tokens": "lockstep_prompt_tokens_total", "admitted": "lockstep_admitted_requests_total",
    "finished": "lockstep_finished_requests_total", "failed": "lockstep_failed_requests_total",
    "cancelled": "lockstep_cancelled_requests_total",
    "preemptions": "lockstep_preemptions_total", "flips": "lockstep_flips_total",
    "manifest_checks": "lockstep_manifest_checks_total",
}
CELLS = {
    "replays": "lockstep_bucket_replays_total", "eager": "lockstep_bucket_eager_steps_total",
    "live": "lockstep_bucket_live_rows_total", "padded": "lockstep_bucket_padded_rows_total",
    "audits": "lockstep_bucket_audits_total",
}
SHOWN = """({
  totals: Object.fromEntries([...document.querySelectorAll('[data-total]')].map(d => [d.dataset.total, Number(d.dataset.value)])),
  cells: Object.fromEntries([...document.querySelectorAll('.cell')].map(c => [c.dataset.bucket, {...c.dataset}])),
  parts: Object.fromEntries([...document.querySelectorAll('#parts tr')].map(r => [r.dataset.part, {...r.dataset}])),
  eager: Object.fromEntries([...document.querySelectorAll('#eager tr[data-reason]')].map(r => [r.dataset.reason, Number(r.dataset.value)])),
  pools: Object.fromEntries([...document.querySelectorAll('.pool')].map(p => [p.dataset.pool, {...p.dataset}])),
  captured: Number(document.getElementById('captured').dataset.value),
  running: Number(document.getElementById('running').dataset.value),
  queued: Number(document.getElementById('queued').dataset.value),
  generation: Number(document.getElementById('generation').dataset.value),
  answers: Number(document.body.dataset.answers),
})"""


def counters(samples):
    """What only grows, as /metrics has it, under the page's names."""
    found = {("total", name): metrics.value(samples, metric) for name, metric in TOTALS.items()}
    for kind, metric in CELLS.items():
        for bucket, number in metrics.by(samples, metric, "bucket").items():
            found["cell", bucket, kind] = number
    for part, number in metrics.by(samples, "lockstep_audits_total", "part").items():
        found["part", part, "audits"] = number
    captured = metrics.value(samples, "lockstep_passes_total", mode="decode_cuda_graph")
    return {**found, ("captured",): captured}


def shown_counters(shown):
    """The same off the page."""
    found = {("total", name): shown["totals"][name] for name in TOTALS}
    for bucket, cell in shown["cells"].items():
        found.update({("cell", bucket, kind): float(cell[kind]) for kind in CELLS})
    found.update({("part", p, "audits"): float(row["audits"]) for p, row in shown["parts"].items()})
    return {**found, ("captured",): shown["captured"]}


class Load:
    """Completions of different lengths, eleven at a time, until it is told to stop."""

    def __init__(self, server):
        self.server, self.stopping = server, threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(11)]

    def ask(self, i):
        while not self.stopping.is_set():
            body = {"prompt": f"Count to {i}:", "max_tokens": 40 + 9 * i, "ignore_eos": True}
            self.server.client.post("/v1/completions", body)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


class Ui(unittest.TestCase):
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        flags = [
            "--served-model-name", HOSTILE, "--max-running-requests", 12, "--graph-max-bs", 8,
            "--audit-rate", 10,
        ]
        cls.server = servers.lockstep(*flags, name="ui").__enter__()
        cls.page = browser.Browser()
        try:
            cls.page.__enter__()
            cls.page.open(f"http://127.0.0.1:{cls.server.port}/ui")
        except BaseException:
            cls.server.stop()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.page.__exit__()
        cls.server.stop()

    def samples(self):
        return metrics.read(self.server.client.get("/metrics"))

    def newer(self):
        """What the page shows after its next answer."""
        seen = self.page.eval("Number(document.body.dataset.answers ?? 0)")
        self.page.until(f"Number(document.body.dataset.answers ?? 0) > {seen + 1}")
        return self.page.eval(SHOWN)

    def verified(self):
        """Waits for the first generation's canary steps, which count and hold pages while nothing is asked."""
        end = time.monotonic() + 300
        while not self.server.client.get("/admin/generations")["data"][0]["verified"]:
            self.assertLess(time.monotonic(), end, "its first generation is not verified")
            time.sleep(0.1)

    def test_numbers_are_those_of_metrics(self):
        self.verified()
        with Load(self.server):
            self.page.until("Number(document.getElementById('running').dataset.value) >= 9")
            before = counters(self.samples())
            shown = self.newer()
            after = counters(self.samples())
            found = shown_counters(shown)
            self.assertEqual(found.keys(), after.keys())
            for name, number in found.items():
                self.assertLessEqual(before[name], number, name)
                self.assertLessEqual(number, after[name], name)
            self.assertGreater(after["total", "steps"], before["total", "steps"])
            self.page.until("Number(document.getElementById('rate').dataset.value) > 0")
            self.page.until("document.querySelectorAll('#rate-line path').length == 2")
            self.page.screenshot(servers.out_dir() / "ui-load.png")
        self.page.until("document.getElementById('running').dataset.value === '0'")
        before, shown, samples = self.samples(), self.newer(), self.samples()
        now = counters(samples)
        for name, number in shown_counters(shown).items():
            if name[0] == "part":
                # The audit's sweeps go on while nothing is asked.
                self.assertLessEqual(counters(before)[name], number, name)
                self.assertLessEqual(number, now[name], name)
            else:
                self.assertEqual(number, now[name], name)
        gauge = lambda name: metrics.value(samples, name)  # noqa: E731
        # What was found: "0 waiting" in the colour of something to look at.
        queued = self.page.eval("getComputedStyle(document.querySelector('.queued')).color")
        self.assertEqual(queued, self.page.eval("getComputedStyle(document.getElementById('load-note')).color"))
        self.assertEqual(shown["running"], gauge("lockstep_running_requests"))
        self.assertEqual(shown["queued"], gauge("lockstep_queued_requests"))
        self.assertEqual(shown["generation"], gauge("lockstep_generation"))
        reasons = metrics.by(samples, "lockstep_eager_steps_total", "reason")
        self.assertEqual(shown["eager"], {r: n for r, n in reasons.items() if n})
        self.assertGreater(shown["eager"]["above_graph_max_bs"], 0, "the load went above 8 rows")
        for kind, metric in [("used", "lockstep_pool_pages_used"),
                             ("cached", "lockstep_pool_pages_cached"),
                             ("total", "lockstep_pool_pages")]:
            shown_pages = {name: float(p[kind]) for name, p in shown["pools"].items()}
            self.assertEqual(shown_pages, metrics.by(samples, metric, "pool"))
        self.assertGreater(float(shown["parts"]["twin"]["audits"]), 0)

    def test_every_bucket_has_a_cell_of_its_mode(self):
        shown = self.newer()["cells"]
        info = self.server.client.get("/server_info")["lockstep"]["engine"]
        self.assertEqual({name: cell["mode"] for name, cell in shown.items()},
                         {b["bucket"]: b["mode"] for b in info["buckets"]})
        self.assertIn("eager", {cell["mode"] for cell in shown.values()})
        places = self.page.eval(
            "[...document.querySelectorAll('.cell')].map(c => c.getBoundingClientRect())"
            ".map(r => [r.x, r.y, r.width, r.height])")
        self.assertTrue(all(width > 20 and height > 20 for _, _, width, height in places))
        self.assertEqual(len({(x, y) for x, y, _, _ in places}), len(places))

    def shortest_row(self):
        """How many cells the last row of decode buckets lacks of what the first has, beyond one less
        for each row above it."""
        rows = self.page.eval(
            "Object.values(Object.groupBy(document.querySelectorAll('#cells-decode .cell'), c => c.offsetTop))"
            ".map(r => r.length)")
        return rows[0] - rows[-1] - max(len(rows) - 2, 0)

    def test_the_colour_can_show_each_of_three_things(self):
        texts = {}
        for heat in ("replays", "padding", "audit"):
            self.page.eval(f"document.querySelector('input[value={heat}]').click()")
            texts[heat] = self.page.eval("[...document.querySelectorAll('.cell span')].map(s => s.textContent)")
        self.page.eval("document.querySelector('input[value=replays]').click()")
        if self.server.client.get("/server_info")["lockstep"]["engine"]["counters"]["steps"]:
            self.assertEqual(len({tuple(t) for t in texts.values()}), 3)
            self.assertTrue(any(t.endswith("%") for t in texts["padding"]), texts)

    def test_a_hostile_name_is_text(self):
        self.newer()
        self.assertEqual(self.page.eval("document.querySelector('h1').textContent"), HOSTILE)
        self.assertIn(HOSTILE, self.page.eval("document.title"))
        self.assertEqual(self.page.eval("document.querySelectorAll('img, h1 *, body script').length"), 0)
        self.assertEqual(self.page.eval("typeof window.pwned"), "undefined")

    def test_what_is_injected_does_not_run(self):
        """The second fence: were the page to put a name into its own markup, the policy that the
        server sends would still keep it from running."""
        for sink in ("innerHTML", "outerHTML"):
            with self.subTest(sink=sink):
                self.page.eval(
                    f"(() => {{ try {{ const d = document.createElement('div'); document.body.append(d);"
                    f" d.{sink} = '<img src=x onerror=window.pwned=2>'; }} catch (e) {{}} }})()")
                self.newer()
                self.assertEqual(self.page.eval("typeof window.pwned"), "undefined")
        # Each attempt is on record; what follows must find the console clean again.
        self.assertTrue(self.page.console, "the browser reports what the policy refuses")
        self.page.console.clear()
        self.page.eval("document.querySelectorAll('body > div:not([id])').forEach(d => d.remove())")

    def test_nothing_is_asked_elsewhere_and_nothing_goes_wrong(self):
        self.newer()
        origins = {f"{u.scheme}://{u.netloc}" for u in map(urlsplit, self.page.requests)
                   if u.scheme != "data"}
        self.assertEqual(origins, {f"http://127.0.0.1:{self.server.port}"})
        paths = {urlsplit(u).path for u in self.page.requests if u.startswith("http")}
        self.assertEqual(paths, {"/ui", "/ui/page.css", "/ui/page.js", "/ui/data"})
        self.assertEqual(self.page.console, [])

    def test_it_fits_a_phone_and_the_dark(self):
        backgrounds = set()
        try:
            for dark in (False, True):
                self.page.theme(dark)
                self.page.resize(390, 844, scale=2, mobile=True)
                self.newer()
                width = self.page.eval("document.documentElement.scrollWidth")
                self.assertLessEqual(width, 390, "the page scrolls sideways")
                self.assertLessEqual(self.shortest_row(), 1, "a row of decode buckets has gaps")
                backgrounds.add(self.page.eval("getComputedStyle(document.body).backgroundColor"))
                self.page.screenshot(servers.out_dir() / f"ui-phone-{'dark' if dark else 'light'}.png")
        finally:
            self.page.theme(False)
            self.page.resize(1280, 900)
        self.assertEqual(len(backgrounds), 2, backgrounds)

    def test_everything_that_can_be_used_has_a_name(self):
        nodes = self.page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "radio", "textbox", "link", "img", "image", "heading", "radiogroup"}
        used = [n for n in nodes if not n.get("ignored") and n["role"]["value"] in roles]
        nameless = [n for n in used if not n.get("name", {}).get("value")]
        self.assertGreater(len(used), 20)
        self.assertEqual(nameless, [])


class UiWithAKey(unittest.TestCase):
    def test_the_key_is_asked_for_and_kept_in_the_tab(self):
        with servers.lockstep("--api-key", "open sesame", name="ui-key") as server, \
                browser.Browser() as page:
            url = f"http://127.0.0.1:{server.port}/ui"
            page.open(url)
            give = ("document.getElementById('key').value = '{}';"
                    "document.querySelector('#login button').click()")
            page.until("!document.getElementById('login').hidden")
            self.assertTrue(page.eval("document.getElementById('body').hidden"))
            page.eval(give.format("wrong"))
            page.until("document.getElementById('login-words').textContent.includes('not the right one')")
            page.eval(give.format("open sesame"))
            page.until("Number(document.body.dataset.answers) > 1")
            self.assertTrue(page.eval("document.getElementById('login').hidden"))
            self.assertIn("SmolLM2", page.eval("document.querySelector('h1').textContent"))
            self.assertFalse([u for u in page.requests if "sesame" in u])
            self.assertEqual(page.eval("document.cookie + localStorage.length"), "0")


class UiWithAlarms(unittest.TestCase):
    def raised(self, server):
        samples = metrics.read(server.client.get("/metrics"))
        return {
            dict(labels)["alarm"] for (name, labels), value in samples.items()
            if name == "lockstep_alarm" and value
        }

    def shown(self, page, verdict):
        page.until(f"document.getElementById('verdict').className === '{verdict}'")
        items = page.eval("[...document.querySelectorAll('#alarms li')].map(a => [a.dataset.alarm, a.textContent])")
        for name, text in items:
            self.assertIn("To do:", text, name)
        return {name for name, _ in items}

    def test_what_is_wrong_stands_first_with_what_to_do(self):
        flags = ["--audit-rate", 0, "--max-running-requests", 1, "--max-queued-requests", 1]
        with servers.lockstep(*flags, name="ui-alarms") as server, browser.Browser() as page:
            page.open(f"http://127.0.0.1:{server.port}/ui")
            self.assertEqual(self.shown(page, "look"), {"audit_off"})
            self.assertEqual(self.raised(server), {"audit_off"})
            body = {"prompt": "Count:", "max_tokens": 60, "ignore_eos": True}

            def ask():
                try:
                    server.client.post("/v1/completions", body)
                except client.Refused as refused:
                    statuses.append(refused.status)

            statuses = []
            with server.client.held("/v1/completions", body, 2):
                end = time.monotonic() + 60
                while probes.status(server)["queued"] != 1:
                    self.assertLess(time.monotonic(), end, "one runs and one waits")
                    time.sleep(0.02)
                for _ in range(3):
                    ask()
            self.assertEqual(statuses, [429] * 3)
            self.assertEqual(self.shown(page, "act"), {"queue_full", "audit_off"})
            self.assertEqual(self.raised(server), {"queue_full", "audit_off"})
            self.assertIn("queue full", page.eval("document.title"))
            page.screenshot(servers.out_dir() / "ui-alarms.png")
            server.wait_log('event="alarm_raised" alarm="queue_full"')


class UiThroughAFlip(unittest.TestCase):
    """Buckets change while requests run; the page shows the old ones, then the new ones."""

    def shown(self, page):
        return page.eval("[...document.querySelectorAll('.generation')].map(g => [Number(g.dataset.generation), g.dataset.state])")

    def known(self, server):
        return [[g["generation"], g["state"]]
                for g in reversed(server.client.get("/admin/generations")["data"])]

    def test_generations_and_their_buckets(self):
        flags = ["--graph-max-bs", 4, "--max-running-requests", 12]
        with servers.lockstep(*flags, name="ui-flip") as server, browser.Browser() as page:
            page.open(f"http://127.0.0.1:{server.port}/ui")
            page.until("document.querySelectorAll('.cell.eager').length > 0")
            with Load(server):
                page.until("Number(document.getElementById('running').dataset.value) >= 9")
                staged = server.client.post(
                    "/admin/generations", {"knobs": {"decode.graph-max-bs": 12}, "wait": True})
                self.assertEqual((staged["generation"], staged["state"]), (2, "verified"))
                page.until("document.querySelector('.generation').dataset.state === 'verified'")
                self.assertEqual(self.shown(page), [[2, "verified"], [1, "live"]])
                server.client.post("/admin/generations/2/flip", {"watch_seconds": 0})
                page.until("document.getElementById('generation').dataset.value === '2'")
                page.until("document.querySelectorAll('.cell.eager').length === 0")
                server.client.post("/admin/generations/1/retire", {})
                page.until("document.querySelectorAll('.generation')[1].dataset.state === 'retired'")
                self.assertEqual(self.shown(page), [[2, "live"], [1, "retired"]])
                self.assertEqual(self.shown(page), self.known(server))
                text = page.eval("document.querySelector('.generation').textContent")
                self.assertIn("decode.graph-max-bs 4 → 12", text)
                self.assertIn("bits compared, 0 differ", text)
                page.until("document.querySelector('[data-bucket=decode-12]').dataset.replays > 20")
                page.screenshot(servers.out_dir() / "ui-flip.png")
            self.assertEqual(page.console, [])
            for event in ('event="stage" generation=2', 'event="flip" generation=2',
                          'event="retire" generation=1'):
                server.wait_log(event)


class UiWithoutAServer(unittest.TestCase):
    def test_a_server_that_is_gone_shows(self):
        with servers.lockstep(name="ui-gone") as server, browser.Browser() as page:
            page.open(f"http://127.0.0.1:{server.port}/ui")
            page.until("document.getElementById('verdict').className === 'well'")
            self.assertEqual(page.eval("document.getElementById('verdict-title').textContent"),
                             "All is well")
            self.assertEqual(server.stop(), 0, server.tail())
            page.until("document.getElementById('verdict').className === 'gone'")
            self.assertIn("No answer", page.eval("document.title.concat(document.getElementById('verdict-title').textContent)"))


if __name__ == "__main__":
    unittest.main()

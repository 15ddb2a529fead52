"""The playground in real browsers, Chromium and Firefox: its lessons, controls, links, the check of
a pasted deadlock, what it exports. playground.bats runs this in a folder of its own; screenshots are
left there."""

import json
import os
import subprocess
import sys
import time
import unittest

from firefox import Firefox
from hard_to_use import HARD_TO_USE
from printed import page_sizes, pixels_of
from webdriver import Browser

PAGE = os.environ["PLAYGROUND"]
WEFT = os.environ["WEFT"]

CROSSED = ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
           "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n")

# What a reader does on each page of the lessons: fields to set, or the name of a method.
LESSONS = {
    "bubble": [{"set-m": "16"}, {"set-p": "8", "set-m": "32"}],
    "memory": [{"schedule": "1F1B"}, {"set-m": "64"}],
    "interleaving": [{"set-v": "4"}, {"set-hop": "0.5"}],
    "split": [{"schedule": "ZBH1"}, "click_gap"],
    "v": [{"schedule": "ZBVZeroBubble"}, {"set-i": "2"}],
    "hang": ["step_to_the_end", {"comm": "slots:1"}, {"scope": "edge"},
             {"program": "#graph,0>1,0>2,1>2\n0F0,0SEND_F0,0SEND_F0>2\n1RECV_F0,1F0,1SEND_F0\n"
                         "2RECV_F0,2RECV_F0<0,2F0\n"}],
    "planning": [{"set-memory": "3"}, {"set-memory": "1"}],
    "bound": ["show_the_plan", {"set-m": "32"}],
}


class Chromium(Browser):
    def open_url(self, url):
        self._ask("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self._ask("POST", "/execute/async", {"args": list(arguments), "script":
                         "const done = arguments[arguments.length - 1];"
                         "(async function () {" + script + "}).apply(null, arguments)"
                         ".then(done, (error) => done({ failed: String(error) }))"})


class Scenarios:
    """What every browser has to pass; subclasses have `make`."""

    @classmethod
    def setUpClass(cls):
        cls.page = cls.make()
        cls.addClassCleanup(cls.page.close)

    def setUp(self):
        begin = time.monotonic()
        self.addCleanup(lambda: print(f"{self.id()} {time.monotonic() - begin:.1f} s", file=sys.stderr))

    def start(self, fragment=""):
        self.page.open_url("about:blank")  # a fragment alone would not load it again
        self.page.open_url("file://" + PAGE + fragment)
        self.wait("document.body.dataset.started !== undefined")

    def wait(self, condition, seconds=60):
        for _ in range(seconds * 5):
            done = self.page.run(
                "for (let k = 0; k < 20; k++) {"
                f"  if ({condition}) return true;"
                "  await new Promise((next) => setTimeout(next, 10));"
                "} return false")
            if done is True:
                return
        self.fail(f"never: {condition}; state {self.page.run('return weftPlayground.state()')}, "
                  f"message {self.page.text('#explore-message')!r}, verdict {self.page.text('#verdict')!r}")

    def set(self, fields):
        self.page.run("""
            for (const [id, value] of Object.entries(arguments[0])) {
              const field = document.getElementById(id);
              field.value = value;
              field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input', { bubbles: true }));
            }""", fields)

    def settled(self, line):
        """Waits until the numbers are those of these settings."""
        self.wait(f"document.getElementById('explore').dataset.ready === {json.dumps(line)} && weftPlayground.explored().sim")

    def push(self, element):
        self.page.run("document.getElementById(arguments[0]).click()", element)

    def expect_quiet(self):
        self.assertEqual(self.page.log_entries(), [])

    def shot(self, name):
        self.page.screenshot(f"playground_{self.name}_{name}.png")

    # ---- Learn ----

    def click_gap(self):
        """A real click beside an action of the timeline, where its rank waits."""
        frame = "document.getElementById('explore-timeline')"
        self.wait(f"{frame}.contentWindow.weftTimeline && {frame}.contentWindow.weftTimeline.boxOf(0, '0W0')")
        x, y = self.page.run(f"""
            const frame = {frame};
            frame.scrollIntoView({{ block: 'center' }});
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            const box = frame.contentWindow.weftTimeline.boxOf(0, '1F0');
            const place = frame.getBoundingClientRect();
            return [place.left + box.left - 8, place.top + (box.top + box.bottom) / 2];""")
        self.page.click(x, y)

    def step_to_the_end(self):
        self.wait("weftPlayground.checked().stepper && !document.getElementById('step-next').disabled")
        for _ in range(3):
            self.push("step-next")
        self.push("step-last")

    def show_the_plan(self):
        self.wait("weftPlayground.explored().plan && weftPlayground.explored().plan.optimal")
        self.push("plan-show")

    def test_lessons(self):
        self.start()
        self.page.run("localStorage.clear()")
        self.assertEqual([(lesson["id"], lesson["pages"]) for lesson in self.page.run("return weftPlayground.lessons()")],
                         [(name, len(pages)) for name, pages in LESSONS.items()])
        for name, pages in LESSONS.items():
            for k, action in enumerate(pages):
                key = json.dumps(f"{name}/{k}")
                self.assertEqual(self.page.run("const s = weftPlayground.state(); return [s.lesson, s.page]"), [name, str(k)])
                self.assertNotIn(f"{name}/{k}", self.page.run("return weftPlayground.done()") if action else [])
                getattr(self, action)() if isinstance(action, str) else self.set(action)
                self.wait(f"weftPlayground.done().includes({key})")
                self.assertIn("Done", self.page.text("#task"))
                if k == 0:
                    self.shot(f"lesson_{name}")
                self.page.run("window.scrollTo(0, 600)")
                self.push("lesson-next")
                self.wait("window.scrollY === 0", 5)
        self.end_of_lessons()
        self.expect_quiet()

    def end_of_lessons(self):
        """The last button leads on, the browser's Back returns, and the ticks are there another day."""
        at = "(({ view, lesson, page, schedule }) => `${view} ${lesson} ${page} ${schedule}`)(weftPlayground.state())"
        self.wait(f"{at} === 'explore bound 1 1F1B'")
        for place in ["learn bound 1 1F1B", "learn bound 0 plan", "learn bound 0 1F1B", "learn planning 1 1F1B"]:
            self.page.run("history.back()")
            self.wait(f"{at} === '{place}' && document.getElementById('schedule').value === {at}.split(' ')[3]")
        self.page.run("history.forward()")
        self.wait(f"{at} === 'learn bound 0 1F1B'")
        pages = sum(len(pages) for pages in LESSONS.values())
        self.start()
        self.assertEqual(len(self.page.run("return weftPlayground.done()")), pages)
        self.assertIn(f"All {pages} tasks are done", self.page.text("#lesson"))
        self.assertIn("Lesson 1 of 8, page 1 of 2", self.page.text("#lesson"))

    # ---- Explore ----

    def test_controls_and_link(self):
        self.start("#explore")
        self.settled("1F1B -p 4 -m 8")
        facts = self.page.text("#facts").replace("\n", " ")
        self.assertIn("makespan 33", facts)
        self.assertIn("bubble 27.3 % = 9 of 33", facts)
        self.assertIn("cannot hang", facts)
        self.set({"settings": "zbv-zero_bubble -p 4 -m 8 --hop 0.5 --memory 3 --slow 1=1.5"})
        self.settled("zbv-zero_bubble -p 4 -m 8 --hop 0.5 --memory 3 --slow 1=1.5")
        self.assertEqual(self.page.run("return ['schedule', 'set-hop', 'set-slow', 'set-factor'].map((id) => document.getElementById(id).value)"),
                         ["ZBVZeroBubble", "0.5", "1", "1.5"])
        self.assertIn("over 3", self.page.text("#facts"))
        sim = self.page.run("return weftPlayground.explored().sim")
        self.wait("location.hash.includes('hop=0.5')")
        link = self.page.run("return location.hash")
        self.start(link)
        self.settled("zbv-zero_bubble -p 4 -m 8 --hop 0.5 --memory 3 --slow 1=1.5")
        self.assertEqual(self.page.run("return weftPlayground.explored().sim"), sim)
        self.wait("document.querySelectorAll('#comparison tbody tr').length > 10")
        self.page.run("document.querySelector('#comparison tbody button').click()")
        self.wait("document.querySelector('#comparison tr[aria-current]')")
        self.wait("weftPlayground.explored().plan")
        self.assertIn("bound", self.page.text("#plan"))
        self.look_at_the_comparison()
        self.assertEqual(self.page.run("return document.getElementById('set-slow').max"), "3")
        self.push("reset")
        self.settled("1F1B -p 4 -m 8")
        self.expect_quiet()

    def look_at_the_comparison(self):
        """Bars start at one edge and are long where schedules are slow."""
        bars = self.page.run("return Array.from(document.querySelectorAll('#comparison .bar'), (bar) => "
                             "[bar.getBoundingClientRect().left, bar.getBoundingClientRect().width])")
        self.assertEqual(len({left for left, _ in bars}), 1, bars)
        self.assertGreater(bars[-1][1], 80)

    def test_the_words_of_the_command(self):
        self.start("#explore")
        for line, same in [("weft gen ZBVZeroBubble -p4 -m 8 --memory=4", "ZBVZeroBubble -p 4 -m 8 --memory 4"),
                           ("gen --ranks=3 --microbatches 6 1F1B -o table.csv", "1F1B -p 3 -m 6"),
                           ("weft plan -p 4 -m 8 --memory 3 --threads 1 --effort 0.05 -o plan.csv", "plan -p 4 -m 8 --memory 3 --effort 0.05")]:
            self.set({"settings": line})
            self.settled(same)
        self.assertEqual(self.page.run("return weftPlayground.explored().sim.makespan"), 25.75)
        self.set({"settings": "zbv -p 4 -m 8"})  # a name that the list does not have
        self.settled("zbv -p 4 -m 8")
        self.assertEqual(self.page.run("return [weftPlayground.explored().sim.makespan, document.getElementById('schedule').value, "
                                       "document.getElementById('set-v').value]"), [25.5, "ZBVZeroBubble", "2"])
        for line, told in [("1F1B GPipe -p 4", "unexpected 'GPipe'"), ("weft gen -p 4", "expected the name of a schedule"),
                           ("plan -p 4 -m 8 -v 2", "the planner chooses v"), ("plan -p 4 -m 8 --effort 1e9", "at most 60")]:
            self.set({"settings": line})
            self.assertIn(told, self.page.text("#explore-message"))
        # An answer that is on its way when the line becomes wrong comes too late, and so does its plan.
        self.page.run("""
            const field = document.getElementById('settings');
            for (const line of ['1F1B -p 4 -m 8', '1F1B -p 8 -m 64', '1F1B -p 8 -m 64 --nonsense']) {
              field.value = line;
              field.dispatchEvent(new Event('input', { bubbles: true }));
            }
            await new Promise((next) => setTimeout(next, 800));""")
        self.assertIn("unknown option '--nonsense'", self.page.text("#explore-message"))
        self.assertIsNone(self.page.run("return weftPlayground.explored().sim"))
        # What takes longer than a blink says so; looked at while it computes, however fast that is.
        said = [self.page.run("""
            const field = document.getElementById('settings');
            field.value = arguments[0];
            field.dispatchEvent(new Event('input', { bubbles: true }));
            for (let k = 0; k < 1500 && document.getElementById('explore').dataset.ready !== arguments[0]; k++) {
              const text = document.getElementById('explore-message').textContent;
              if (text.startsWith('Computing Interleaved1F1B')) return text;
              await new Promise((next) => setTimeout(next, 10));
            }
            return '';""", f"Interleaved1F1B -p 64 -v 2 -m {m}") for m in (256, 1024)]
        self.assertIn("Computing Interleaved1F1B", said[1], said)
        self.expect_quiet()

    def test_too_many_actions_for_a_timeline(self):
        """The numbers are shown, without the picture, and what would have one. With a limit of 500
        actions, because those of 10,000,000 take a minute."""
        shown = "!document.getElementById('explore-timeline').hidden"
        self.start("#explore")
        self.settled("1F1B -p 4 -m 8")
        self.wait(shown)
        self.page.run("weftPlayground.drawAtMost(500)")
        self.set({"settings": "1F1B -p 8 -m 64"})
        self.settled("1F1B -p 8 -m 64")
        self.assertFalse(self.page.run(f"return {shown}"))
        self.assertIn("makespan 213", self.page.text("#facts").replace("\n", " "))
        told = self.page.text("#explore-message")
        self.assertIn("2,816 actions are too many for a timeline: a page holds 500; -m 11 with as many ranks has one", told)
        self.assertIn("Idle time", told)
        self.set({"settings": "1F1B -p 8 -m 11"})
        self.settled("1F1B -p 8 -m 11")
        self.assertTrue(self.page.run(f"return {shown}"))
        self.expect_quiet()

    def test_the_plan_is_what_is_shown(self):
        self.start("#explore?memory=3")
        self.settled("1F1B -p 4 -m 8 --memory 3")
        self.wait("weftPlayground.explored().plan && weftPlayground.explored().plan.optimal && document.getElementById('plan-stop').hidden")
        self.assertEqual(self.page.run("return document.querySelector('#plan .bounds').getAttribute('aria-label')"),
                         "bound 25.75, plan 25.75, 1F1B 33")
        self.assertTrue(self.page.run("return document.getElementById('plan-longer').hidden"))
        self.assertIn("plan 25.75, optimal", self.page.text("#facts").replace("\n", " "))
        self.push("plan-show")
        self.wait("weftPlayground.explored().sim && weftPlayground.explored().sim.makespan === 25.75")
        self.assertEqual(self.page.run("return document.getElementById('schedule').value"), "plan")
        self.assertTrue(self.page.run("return document.getElementById('settings').value").startswith("plan -p 4 -m 8 --memory 3"))
        self.assertNotIn("closed form", self.page.text("#facts"))
        self.assertEqual(self.page.run("return document.querySelectorAll('#comparison tr[aria-current]').length"), 0)
        self.wait("location.hash.includes('schedule=plan')")
        link = self.page.run("return location.hash")
        sim, table = self.page.run("const { sim, table } = weftPlayground.explored(); return [sim, table]")
        self.shot("plan")
        self.push("share-button")
        for target, word in [("pytorch", "PyTorch"), ("torchtitan", "torchtitan")]:  # and no report of the plan
            self.wait(f"document.getElementById('for-{target}').textContent.startsWith('For {word}')")
        line = self.page.run("return document.getElementById('commands').textContent").split("\n")[0]
        subprocess.run([WEFT, *line.split()[1:]], check=True, capture_output=True)
        with open("table.csv", encoding="utf-8") as made:
            self.assertEqual(made.read(), table)
        self.assertEqual(bytes(self.exported("Table (CSV)")).decode(), table)
        self.assertEqual(json.loads(bytes(self.exported("Prediction (JSON)"))), sim)
        self.assertIn(b"25.75", bytes(self.exported("Picture (SVG)")))
        self.page.run("document.getElementById('share').close()")
        self.push("plan-hide")
        self.settled("1F1B -p 4 -m 8 --memory 3")
        self.assertEqual(self.page.run("return weftPlayground.explored().sim.makespan"), 33)
        self.page.run("history.back()")
        self.wait("weftPlayground.explored().sim && weftPlayground.explored().sim.makespan === 25.75")
        self.start(link)
        self.wait("weftPlayground.explored().sim")
        self.assertEqual(self.page.run("return [weftPlayground.explored().table, weftPlayground.explored().sim.makespan]"), [table, 25.75])
        self.expect_quiet()

    def test_errors_are_the_commands(self):
        self.start("#explore")
        self.settled("1F1B -p 4 -m 8")
        for line in ["1f1 -p 4 -m 8", "DualPipeV -p 4 -m 2", "1F1B -p 0 -m 8", "1F1B -p 4 -m x"]:
            told = subprocess.run([WEFT, "gen", *line.split()], capture_output=True, text=True).stderr.split("\n")
            self.set({"settings": line})
            message = json.dumps(told[0].replace("weft: ", ""))
            self.wait(f"document.getElementById('explore-message').textContent.startsWith({message})")
            self.assertIn(told[1].replace("  hint: ", ""), self.page.text("#explore-message"))
        self.set({"settings": "1F1B -p 4 -m 8 --f x"})
        self.assertIn("expected a number", self.page.text("#explore-message"))
        self.set({"settings": "1F1B -p 4 --nonsense 3"})
        self.assertIn("unknown option '--nonsense'", self.page.text("#explore-message"))
        self.start("#explore?memory=4x")
        self.assertIn("the memory limit is '4x': expected a number", self.page.text("#explore-message"))
        self.assertTrue(self.page.run("return document.getElementById('plan-longer').hidden"))  # there is nothing to search
        self.expect_quiet()

    def test_planner_can_be_stopped(self):
        self.start("#explore?p=12&m=48&hop=0.3&memory=9&i=1.3")
        self.wait("weftPlayground.explored().planning")
        self.push("plan-stop")
        self.assertFalse(self.page.run("return weftPlayground.explored().planning"))
        self.assertFalse(self.page.run("return document.getElementById('plan-longer').hidden"))
        self.push("plan-longer")
        self.wait("weftPlayground.explored().planning")
        self.assertEqual(self.page.run("return document.getElementById('plan-stop').hidden"), False)
        self.push("plan-stop")
        self.assertFalse(self.page.run("return weftPlayground.explored().planning"))
        self.set({"set-m": "8", "set-p": "4", "set-memory": "3", "set-hop": "0", "set-i": "1"})
        self.wait("weftPlayground.explored().plan && weftPlayground.explored().plan.makespan === 25.75")
        self.plan_before_the_timeline()
        self.longer_while_the_plan_is_shown()
        self.expect_quiet()

    def longer_while_the_plan_is_shown(self):
        """The address leads to the plan that is on the screen."""
        self.start("#explore?schedule=plan&p=6&m=20&hop=0.3&memory=4&i=1.3&effort=0.05")
        self.wait("weftPlayground.explored().sim && !document.getElementById('plan-longer').hidden")
        self.push("plan-longer")
        self.wait("document.getElementById('settings').value.endsWith('--effort 2')")
        self.push("plan-stop")
        self.wait("location.hash.endsWith('&effort=2')", 5)

    def plan_before_the_timeline(self):
        """The bar of the schedule that is shown comes with it, however late that is."""
        self.page.run("""
            const post = Worker.prototype.postMessage;
            Worker.prototype.postMessage = function (message, ...more) {
              if (message.kind !== 'explore') { post.call(this, message, ...more); return; }
              window.release = () => { Worker.prototype.postMessage = post; post.call(this, message, ...more); };
            };""")
        bars = "document.querySelector('#plan .bounds').getAttribute('aria-label')"
        self.set({"set-m": "4"})
        self.wait("weftPlayground.explored().plan && weftPlayground.explored().plan.optimal")
        self.assertRegex(self.page.run(f"return {bars}"), "^bound [0-9.]+, plan [0-9.]+$")
        self.page.run("release()")
        self.wait(f"{bars}.endsWith(', 1F1B 21')")
        self.set({"set-m": "1"})
        self.wait("document.getElementById('plan').innerText.includes('\\n1 order evaluated, ')")

    # ---- Check ----

    def test_pasted_deadlock(self):
        self.start("#check")
        self.assertIn("Nothing to check yet", self.page.text("#verdict"))
        self.page.run("""
            const field = document.getElementById('program');
            field.focus();
            field.select();
            document.execCommand('insertText', false, arguments[0]);""", CROSSED)  # as a paste does
        self.wait("weftPlayground.checked().verdict && !weftPlayground.checked().verdict.ok")
        verdict = self.page.text("#verdict")
        self.assertIn("deadlock", verdict)
        self.assertIn("rank 0 step 3 0SEND_F1", verdict)
        self.assertEqual(self.page.run("return document.querySelectorAll('#cycle .ring-node').length"), 2)
        self.assertIn("waits for rank 1 to do 1RECV_F1", self.page.text("#cycle"))
        steps, ring = self.page.run("return ['#stepper', '#cycle .ring'].map((name) => document.querySelector(name).getBoundingClientRect().toJSON())")
        self.assertLess(ring["height"], 200)
        self.assertLessEqual(steps["top"], ring["top"])
        self.assertLess(ring["top"], steps["bottom"])
        self.page.run("document.getElementById('stepper').focus()")
        for move in range(1, 5):
            self.page.press("Right")
            self.assertEqual(self.page.run("return weftPlayground.checked().stepper.moves"), move)
        self.page.press("Left")
        self.assertEqual(self.page.run("return weftPlayground.checked().stepper.moves"), 3)
        self.push("step-last")
        self.assertTrue(self.page.run("return weftPlayground.checked().stepper.stuck"))
        self.assertIn("Nothing can move any more: 2 ranks wait forever", self.page.text("#step-words"))
        self.assertEqual(self.page.run("return Array.from(document.querySelectorAll('.steps td.cycle'), (cell) => cell.innerText.trim())"),
                         ["0SEND_F1", "1SEND_B0"])
        self.shot("deadlock")
        # The address follows a moment later: until then it may have one of the moves above.
        self.wait("location.hash.includes('at=' + weftPlayground.checked().stepper.moves)")
        self.start(self.page.run("return location.hash"))
        self.wait("weftPlayground.checked().stepper && weftPlayground.checked().stepper.stuck")
        self.set({"comm": "slots:1"})
        self.wait("weftPlayground.checked().verdict && weftPlayground.checked().verdict.ok")
        self.push("step-last")
        self.assertTrue(self.page.run("return weftPlayground.checked().stepper.finished"))
        self.expect_quiet()

    def test_tools_and_wrong_programs(self):
        self.start("#check")
        self.set({"program": "0F0,nonsense\n"})
        self.wait("document.getElementById('verdict').textContent.includes('pasted.csv:1:')")
        self.set({"program": "0F0,0B0\n1F0,1B0\n"})
        self.wait("weftPlayground.checked().verdict && weftPlayground.checked().verdict.ok")
        self.assertIn("1 microbatch,", self.page.text("#verdict"))
        self.assertNotIn("note", self.page.text("#verdict"))
        self.set({"program": "0F0,0B0\n\n1F0,1B0\n\n\n"})  # a rank between them; lines at the end are none
        self.wait("document.getElementById('verdict').textContent.includes('3 ranks, 2 stages, 1 microbatch, 4 actions; note: rank 1 has no action')")
        self.set({"program": "0F0,0B0\n1F0,1B0\n"})
        self.wait("weftPlayground.checked().verdict && weftPlayground.checked().verdict.ranks === 2")
        self.share_what_is_checked()
        self.set({"program": "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"})  # the costs are those of weft sim
        self.wait("(document.getElementById('check-timeline').contentDocument.getElementById('cards') || {}).innerText"
                  ".replace(/\\s+/g, ' ').includes('makespan 6 units of time')")
        large = subprocess.run(f"{WEFT} gen 1F1B -p 32 -m 256 | {WEFT} lower --no-unshard --no-reduce-grad", shell=True, check=True,
                               capture_output=True, text=True).stdout
        self.set({"program": large})
        self.assertIsNone(self.page.run("return weftPlayground.checked().verdict"))
        self.wait("document.getElementById('verdict').textContent.startsWith('Checking')")
        self.set({"program": "0F0,0B0\n1F0,1B0\n"})
        self.wait("weftPlayground.checked().verdict && weftPlayground.checked().verdict.ok")
        self.push("use-lower")
        self.wait("document.getElementById('tool-output').textContent.includes('0SEND_F0')")
        self.push("tool-use")
        self.wait("weftPlayground.checked().verdict && weftPlayground.checked().verdict.level === 'comms'")
        self.assertTrue(self.page.run("return document.getElementById('tool').hidden"))  # it was of the table
        self.push("use-explain")
        self.wait("document.getElementById('tool-output').textContent.includes('from rank 0')")
        self.page.run("Array.from(document.querySelectorAll('#samples button')).find((button) => button.textContent.includes('skip')).click()")
        self.wait("weftPlayground.checked().verdict && (weftPlayground.checked().verdict.cycle || []).length === 3")
        self.push("step-last")
        self.assertIn("3 ranks wait forever", self.page.text("#step-words"))
        self.shot("skip")
        self.set({"program": "#graph,0>1,0>2,1>2\n0F0,0B0\n1F0,1B0\n2F0,2B0\n"})
        self.wait("weftPlayground.checked().verdict && weftPlayground.checked().verdict.ok")
        self.push("use-lower")
        self.wait("document.getElementById('tool-output').textContent.includes('0SEND_F0>2')")
        self.set({"other": "0F0,0B0\n1F0\n"})
        self.wait("document.getElementById('tool-output').textContent.includes('differences')")
        self.page.run("""
            const carried = new DataTransfer();
            carried.items.add(new File([arguments[0]], 'dropped.csv'));
            document.getElementById('check').dispatchEvent(new DragEvent('drop', { dataTransfer: carried, bubbles: true, cancelable: true }));""", CROSSED)
        self.wait("weftPlayground.checked().verdict && weftPlayground.checked().verdict.cycle")
        self.expect_quiet()

    # ---- Share ----

    def exported(self, name):
        """The bytes that a button of the dialog would save."""
        return self.page.run("""
            const made = new Promise((done) => { URL.createObjectURL = (blob) => { done(blob); return 'about:blank'; }; });
            HTMLAnchorElement.prototype.click = () => {};
            Array.from(document.querySelectorAll('#share button')).find((button) => button.textContent === arguments[0]).click();
            const blob = await made;
            return Array.from(new Uint8Array(await blob.arrayBuffer()));""", name)

    def test_exports_and_commands(self):
        self.start("#explore?schedule=ZBH1&p=3&m=5&hop=0.25&slow=1&factor=2&memory=3&f=0.7")
        self.settled("ZBH1 -p 3 -m 5 --f 0.7 --hop 0.25 --memory 3 --slow 1=2")
        sim = self.page.run("return weftPlayground.explored().sim")
        self.export_as_the_commands_do(sim)
        self.export_for_pytorch()
        self.expect_quiet()

    def export_for_pytorch(self):
        """The table that the recipe loads is one that PyTorch takes."""
        self.set({"settings": "1F1B -p 2 -m 1"})
        self.settled("1F1B -p 2 -m 1")
        self.push("share-button")
        self.wait("document.getElementById('for-pytorch').textContent.includes('_load_csv(\"pytorch.csv\"')")
        self.assertEqual(bytes(self.exported("Table for PyTorch and torchtitan (CSV)")), b"0F0,0B0\n1F0,1B0\n")
        self.page.run("document.getElementById('share').close()")

    def export_as_the_commands_do(self, sim):
        """The dialog's files are those that its commands write, and what is on the screen."""
        self.push("share-button")
        ranks = len(sim["ranks"])
        self.wait(f"document.getElementById('for-torchtitan').textContent.includes('pipeline_parallel_degree {ranks}')")
        self.assertIn("_load_csv", self.page.text("#for-pytorch"))
        self.assertIn("it opens nowhere else", self.page.text("#share-warnings"))
        lines = self.page.run("return document.getElementById('commands').textContent")
        environment = dict(os.environ, PATH=os.path.dirname(WEFT) + ":" + os.environ["PATH"])
        ran = subprocess.run(["bash", "-c", lines.replace("weft sim", "weft sim --json")], env=environment,
                             capture_output=True, text=True)
        native = next(json.loads(line) for line in ran.stdout.split("\n") if line.startswith('{"schema":"weft-sim/1"'))
        self.assertEqual(native, sim)
        self.assertTrue(bytes(self.exported("Picture (PNG)")).startswith(b"\x89PNG"))
        for name, file in [("Table (CSV)", "table.csv"), ("Program (CSV)", "program.csv"), ("Costs (JSON)", "costs.json"),
                           ("Timeline (HTML)", "timeline.html")]:
            with open(file, "rb") as made:
                self.assertEqual(bytes(self.exported(name)).strip(), made.read().strip(), name)
        self.assertIn(b"<svg", bytes(self.exported("Picture (SVG)")))
        self.assertEqual(json.loads(bytes(self.exported("Prediction (JSON)"))), sim)
        self.page.run("document.getElementById('share').close()")

    def share_what_is_checked(self):
        self.push("share-button")
        self.assertEqual(self.page.text("#commands"), "weft verify program.csv --comm rendezvous\nweft show program.csv -o timeline.html")
        self.assertTrue(self.page.run("return document.getElementById('run-with').hidden"))
        self.assertEqual(bytes(self.exported("Program (CSV)")).decode(), self.page.run("return weftPlayground.state().program"))
        self.assertIn(b"<svg", bytes(self.exported("Picture (SVG)")))
        self.assertTrue(json.loads(bytes(self.exported("Verdict (JSON)")))["ok"])
        self.page.run("document.getElementById('share').close()")

    def test_links_that_cannot_be_followed(self):
        self.start("#xplore")
        self.assertIn("names the part 'xplore': expected one of learn, explore, check", self.page.text("#notice"))
        bomb = self.page.run("""
            const stream = new Blob(Array(40).fill(new Uint8Array(1 << 20))).stream().pipeThrough(new CompressionStream('deflate-raw'));
            const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
            return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join('')).replace(/\\+/g, '-').replace(/\\//g, '_');""")
        for link, told in [("#check?program=%%%bad", "The link is damaged: its program cannot be read"),
                           ("#learn?lesson=none", "the lesson 'none', which is not there"),
                           ("#learn?lesson=hang&page=-1", "the page '-1' of a lesson: expected one from 0 to 3"),
                           ("#learn?lesson=hang&page=4", "the page '4' of a lesson"),
                           ("#learn?page=1.5", "the page '1.5' of a lesson: expected one from 0 to 1"),
                           ("#check?program=" + bomb, "it unpacks to more than 32 MB"),
                           ("#explore?constructor=1&toString=2&p=5", "")]:
            self.page.run("location.hash = arguments[0]", link)
            self.wait(f"document.getElementById('notice').innerText.includes({json.dumps(told)})"
                      if told else "document.getElementById('notice').hidden")
        self.settled("1F1B -p 5 -m 8")
        self.assertNotIn("constructor", self.page.run("return Object.keys(weftPlayground.state())"))
        # A long program: the address has it all, and the dialog says what such a link is good for.
        numbers = ",".join(f"0F{(k * 7919) % 99991}" for k in range(6000))
        self.page.run("location.hash = '#check'")
        self.wait("weftPlayground.state().view === 'check'")
        self.set({"program": numbers})
        self.push("share-button")
        self.wait("document.getElementById('share-warnings').innerText.includes('mail and chat programs cut such links')")
        self.wait("location.hash.length > 8000")
        self.expect_quiet()

    # ---- Everyone ----

    def test_names_for_screen_readers(self):
        self.start("#explore")
        self.settled("1F1B -p 4 -m 8")
        nameless = self.page.run("""
            return Array.from(document.querySelectorAll('button, input, select, textarea, iframe, [role=group]'))
              .filter((field) => !(field.textContent.trim() || field.getAttribute('aria-label') || field.title || (field.labels && field.labels.length)))
              .map((field) => field.outerHTML)""")
        self.assertEqual(nameless, [])


class InChromium(Scenarios, unittest.TestCase):
    name = "chromium"

    @staticmethod
    def make():
        return Chromium(1400, 1000)

    def swipe_over_the_timeline(self):
        """It is higher than what a phone shows around it: swipes scroll its rows, then the page."""
        place = """
            const frame = document.getElementById('explore-timeline');
            const outer = frame.getBoundingClientRect();
            const inner = frame.contentWindow.document.getElementById('canvas').getBoundingClientRect();
            return [outer.left + inner.left + inner.width / 2, outer.top + inner.top + inner.height / 2, scrollY]"""
        self.wait("document.getElementById('explore-timeline').contentWindow.weftTimeline")
        self.page.run("document.getElementById('explore-timeline').scrollIntoView({ block: 'center' })")
        x, y, before = self.page.run(place)
        for _ in range(2):
            self.page.swipe(x, y, -200)
        self.wait(f"scrollY > {before} + 50", 5)

    def test_printed(self):
        self.start("#explore?schedule=1F1B&p=2&m=3")
        self.settled("1F1B -p 2 -m 3")
        self.wait("document.getElementById('explore-timeline').contentWindow.weftTimeline")
        self.page.frame()
        pdf = self.page.print()
        wide = self.page.run("const { width, height } = document.getElementById('explore-timeline').contentDocument.getElementById('print'); "
                             "return width / height")
        self.assertGreater(wide, 277 / 85)  # as wide as the sheet, in the height that it has there
        self.assertGreater(*page_sizes(pdf)[0])  # across
        self.assertGreater(pixels_of(pdf, (0x56, 0xb4, 0xe9)), 300)  # F
        self.assertGreater(pixels_of(pdf, (0xd5, 0x5e, 0x00)), 600)  # B
        self.assertEqual(pixels_of(pdf, (0, 0, 0)), 0)  # no black box
        self.start("#explore?schedule=ZBVZeroBubble")
        self.settled("ZBVZeroBubble -p 4 -m 8")
        self.wait("(document.getElementById('plan-card') || {}).innerText.includes('optimal')")  # in a second line
        self.page.emulate_screen(1, 1047, 718)  # a sheet across, without its margins
        self.page.emulate_print(True)
        self.assertLess(self.page.run("return document.getElementById('explore-timeline').getBoundingClientRect().bottom + scrollY"), 718)
        self.page.emulate_print(False)
        self.page.emulate_screen(0)

    def test_dark_and_narrow(self):
        for dark in (True, False):
            self.page.emulate_dark(dark)
            self.start("#explore?schedule=ZBVZeroBubble&hop=0.1")
            self.settled("ZBVZeroBubble -p 4 -m 8 --hop 0.1")
            self.assertEqual(self.page.run("return document.documentElement.dataset.theme"), "dark" if dark else "light")
            self.shot("dark" if dark else "light")
            self.wait("document.querySelector('#comparison tr[aria-current]')")
            self.assertEqual(self.page.run(HARD_TO_USE), [])
        self.page.emulate_screen(2, 390, 844)
        for view in ("explore", "check", "learn"):
            self.start(f"#{view}")
            self.assertLessEqual(self.page.run("return document.documentElement.scrollWidth"), 390, view)
            self.assertEqual(self.page.run(HARD_TO_USE), [], view)
            self.shot(f"narrow_{view}")
        self.start("#explore")
        self.settled("1F1B -p 4 -m 8")
        self.swipe_over_the_timeline()
        self.page.emulate_screen(0)
        self.expect_quiet()


class InFirefox(Scenarios, unittest.TestCase):
    name = "firefox"

    @staticmethod
    def make():
        return Firefox(1400, 1000)


if __name__ == "__main__":
    begin = time.monotonic()
    program = unittest.main(exit=False)
    print(f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
    sys.exit(not program.result.wasSuccessful())

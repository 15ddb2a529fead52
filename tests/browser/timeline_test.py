"""The HTML timeline in a real browser: what it shows when one hovers, clicks,
zooms, types and loads, from pages that the command made. browser.bats makes the
pages and runs this in their folder; screenshots are left there too."""

import base64
import json
import math
import os
import random
import re
import unittest

from hard_to_use import HARD_TO_USE
from printed import page_sizes, pixels_of
from webdriver import Browser

# The pages: 1F1B, p = 2, m = 3, F = 1, B = 2, transfers of 0.5:
#   rank 0   0F0 0-1, 0F1 1-2, 0B0 5-7, 0F2 7-8, 0B1 8-10, 0B2 12-14
#   rank 1   1F0 1.5-2.5, 1B0 2.5-4.5, 1F1 4.5-5.5, 1B1 5.5-7.5, 1F2 8.5-9.5, 1B2 9.5-11.5
SMALL = "small.html"
HOVERED = {
    "0F0": ["0F0 · rank 0", "forward, stage 0, microbatch 0", "0 – 1 ms, takes 1 ms",
            "waited for nothing", "idle before it: none"],
    "1F0": ["1F0 · rank 1", "forward, stage 1, microbatch 0", "1.5 – 2.5 ms, takes 1 ms",
            "waited for 0F0 on rank 0, which ended at 1 ms; its activation arrived at 1.5 ms",
            "idle before it: 1.5 ms before its first action"],
    "0B0": ["0B0 · rank 0", "backward, stage 0, microbatch 0", "5 – 7 ms, takes 2 ms",
            "waited for 1B0 on rank 1, which ended at 4.5 ms; its gradient arrived at 5 ms",
            "idle before it: 3 ms waiting for a gradient"],
    "1F2": ["1F2 · rank 1", "forward, stage 1, microbatch 2", "8.5 – 9.5 ms, takes 1 ms",
            "waited for 0F2 on rank 0, which ended at 8 ms; its activation arrived at 8.5 ms",
            "idle before it: 1 ms waiting for an activation"],
    "1B1": ["1B1 · rank 1", "backward, stage 1, microbatch 1", "5.5 – 7.5 ms, takes 2 ms",
            "waited for 1F1, just before it on the rank", "idle before it: none"],
    "1RECV_F2": ["1RECV_F2 · rank 1", "activation received, stage 1, microbatch 2",
                 "8 – 8.5 ms, takes 0.5 ms", "waited for 0F2 on rank 0, which ended at 8 ms"],
}
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">\u2028<!--<script>"


def timeline_of(table, durations):
    """The events of a compute-only table by rank, (begin, end, op) in order: an
    independent simulation, without transfers."""
    with open(table, encoding="utf-8") as file:
        rows = [re.findall(r"(\d+)([FB])(\d+)", line) for line in file]
    done, events, free, at = {}, [[] for _ in rows], [0] * len(rows), [0] * len(rows)
    last = max(int(stage) for row in rows for stage, _, _ in row)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                stage, op, microbatch = int(row[at[rank]][0]), row[at[rank]][1], row[at[rank]][2]
                needs = [(stage - 1, "F", microbatch)] if op == "F" else [
                    (stage, "F", microbatch), (stage + 1, "B", microbatch)]
                needs = [need for need in needs if 0 <= need[0] <= last]
                if any(need not in done for need in needs):
                    break
                begin = max([free[rank]] + [done[need] for need in needs])
                free[rank] = done[stage, op, microbatch] = begin + durations[op]
                events[rank].append((begin, free[rank], op))
                at[rank] += 1
                moved = True
    return events


def shares(events, begin, length, columns):
    """For each of the columns the share of its time that each op has."""
    found = [{} for _ in range(columns)]
    for start, end, op in events:
        first = max(0, math.floor((start - begin) / length))
        last = min(columns - 1, math.floor((end - begin) / length))
        for column in range(first, last + 1):
            left = begin + column * length
            part = min(end, left + length) - max(start, left)
            if part > 0:
                found[column][op] = found[column].get(op, 0) + part / length
    return found


class Timeline(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.page = self.browser
        self.page.log_entries()  # forget what other tests left

    def open(self, name):
        self.page.open(name)
        self.page.frame()

    def shot(self, name):
        self.page.screenshot(f"{name}.png")

    def expect_quiet(self):
        self.assertEqual(self.page.log_entries(), [])

    def ask(self, expression, *arguments):
        return self.page.run(f"return weftTimeline.{expression}", *arguments)

    def box(self, action, schedule=0):
        box = self.ask("boxOf(arguments[0], arguments[1])", schedule, action)
        self.assertIsNotNone(box, action)
        return box

    def centre(self, action, schedule=0):
        box = self.box(action, schedule)
        return (box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2

    def tooltip(self):
        return (self.page.text("#tooltip") or "").split("\n")

    def chains(self):
        """What is listed under Needs and under Needed by, with their headings."""
        return self.page.run("""
            return Array.from(document.querySelectorAll('#selection h3')).map((head) =>
              [head.innerText, ...Array.from(head.nextElementSibling.children).map((c) => c.innerText)])""")

    def forget_message(self):
        self.page.run("document.getElementById('message').textContent = ''")

    def message_after_loading(self):
        """Files are read in their own time; what came of it is said."""
        for _ in range(500):
            message = self.page.text("#message")
            if message:
                self.page.frame()
                return message
            self.page.frame()
        return self.fail("nothing was said about a file")

    def load(self, name, text=None):
        if text is not None:
            with open(name, "w", encoding="utf-8") as file:
                file.write(text)
        self.forget_message()
        self.page.choose_file("#load", name)
        return self.message_after_loading()

    def drop(self, name, text):
        self.forget_message()
        self.page.run("""
            const carried = new DataTransfer();
            carried.items.add(new File([arguments[1]], arguments[0]));
            const options = { dataTransfer: carried, bubbles: true, cancelable: true };
            document.body.dispatchEvent(new DragEvent('dragover', options));
            document.body.dispatchEvent(new DragEvent('drop', options));""", name, text)
        return self.message_after_loading()

    def data_of(self, name):
        with open(name, encoding="utf-8") as file:
            return re.search(r'id="weft-data">(.*?)</script>', file.read(), re.S).group(1)

    # ---- The mouse ----

    def test_opens_quietly(self):
        for name in [SMALL, "table.html", "overlaps.html", "sharded.html", "pair.html"]:
            self.open(name)
            self.assertEqual(self.page.text("#message"), "", name)
            self.assertGreater(self.ask("eventCount(0)"), 0)
            self.expect_quiet()
        self.open(SMALL)
        self.assertEqual(self.page.run("return document.title"), "small.csv · Weft timeline")
        self.assertEqual(self.page.text("#range"), "showing 0 – 14 of 0 – 14 ms")
        self.assertIn("makespan 14 ms", self.page.text("#cards").replace("\n", " "))
        self.shot("small")

    def test_hover(self):
        self.open(SMALL)
        for action, lines in HOVERED.items():
            self.page.hover(*self.centre(action))
            self.assertEqual(self.tooltip(), lines)
        self.expect_quiet()

    def test_a_graph_names_its_edges(self):
        # 0F0 0-1; to stage 1 until 1.5, to stage 2 over the large edge until 7.5.
        self.open("skip.html")
        self.assertIn("edges 0>1, 0>2, 1>2", self.page.text("#cards").replace("\n", " "))
        for action, lines in {
                "2F0": ["2F0 · rank 2", "forward, stage 2 (head), microbatch 0", "7.5 – 8.5 ms, takes 1 ms",
                        "waited for 0F0 on rank 0, which ended at 1 ms; its activation arrived over the edge 0>2 at 7.5 ms",
                        "idle before it: 7.5 ms before its first action"],
                "0SEND_F0>2": ["0SEND_F0>2 · rank 0", "activation sent, stage 0 (encoder) to stage 2 (head), microbatch 0",
                               "1 – 7.5 ms, takes 6.5 ms", "waited for 0F0 on rank 0, which ended at 1 ms"],
        }.items():
            self.page.hover(*self.centre(action))
            self.assertEqual(self.tooltip(), lines)
        self.page.click(*self.centre("2F0"))
        self.assertEqual(self.chains()[0], ["Needs: 2, over 3 transfers", "0F0", "1F0"])
        self.page.press("c")
        self.assertIn("stage 2 (head)", self.page.text("#legend"))
        self.shot("graph")
        self.expect_quiet()

    def test_hover_idle_and_memory(self):
        self.open(SMALL)
        box = self.box("0B0")
        self.page.hover(box["left"] - 20, (box["top"] + box["bottom"]) / 2)
        self.assertEqual(self.tooltip(), [
            "idle · rank 0", "2 – 5 ms: 3 ms waiting for a gradient",
            "0B0 needs the gradient that 1B0 on rank 1 finished only at 4.5 ms.",
            "Splitting the backward hands the gradient on earlier, and leaves weight gradients to fill the gap; "
            "another microbatch in flight fills it too, at the price of its memory."])
        self.page.hover(box["left"] + 20, box["bottom"] + 30)
        self.assertEqual(self.tooltip()[0], "activations · rank 0")
        self.assertEqual(self.tooltip()[2], "peak 2 at 1 ms")

    def test_click_shows_dependencies(self):
        self.open(SMALL)
        self.page.click(*self.centre("1F1"))
        self.assertEqual(self.chains(), [["Needs: 1, over 1 transfer", "0F1"],
                                         ["Needed by: 2, over 1 transfer", "1B1", "0B1"]])
        self.assertEqual(self.page.text("#selection h2"), "1F1")
        self.shot("selected")
        self.page.click(*self.centre("0B2"))
        self.assertEqual(self.chains(), [["Needs: 3, over 2 transfers", "0F2", "1F2", "1B2"],
                                         ["Needed by: 0"]])
        box = self.box("0F0")
        self.page.click(box["left"] + 5, box["top"] - 8)  # beside everything
        self.assertEqual(self.page.text("#selection h2"), "No action selected")
        self.expect_quiet()

    def test_critical_path(self):
        self.open(SMALL)
        self.page.press("p")
        self.assertEqual(self.page.text("#selection").split("\n")[::2][:1], ["Critical path"])
        self.assertIn("12 ms of compute on 2 ranks, 2 ms of transfers", self.page.text("#selection"))
        self.shot("path")
        self.page.press("p")
        self.assertEqual(self.page.text("#selection h2"), "No action selected")
        self.expect_quiet()

    def test_critical_path_is_as_long_as_the_whole(self):
        for name in [SMALL, "overlaps.html", "queued.html", "sharded.html"]:
            self.open(name)
            self.page.press("p")
            parts = re.findall(r"([0-9.]+) (?:ms|units?) of ", self.page.text("#selection p"))
            begin, end = self.ask("window()")
            self.assertAlmostEqual(sum(map(float, parts)), end - begin, places=2, msg=name)

    def test_zoom_and_pan(self):
        self.open(SMALL)
        x, y = self.centre("1B1")
        self.page.wheel(x, y, -600)
        begin, end = self.ask("window()")
        self.assertAlmostEqual(end - begin, 14 / 3.32, delta=0.1)  # e^1.2
        self.assertTrue(begin < 6.5 < end)
        self.assertAlmostEqual(self.centre("1B1")[0], x, delta=1.5)  # stays under the pointer
        self.page.drag(x, y, x - 100, y)
        self.assertGreater(self.ask("window()")[0], begin)
        self.assertAlmostEqual(self.centre("1B1")[0], x - 100, delta=1.5)
        self.assertNotEqual(self.page.text("#range"), "showing 0 – 14 of 0 – 14 ms")
        self.page.run("document.getElementById('fit').click()")
        self.page.frame()
        self.assertEqual(self.page.text("#range"), "showing 0 – 14 of 0 – 14 ms")
        self.expect_quiet()

    def test_pinch(self):
        self.open(SMALL)
        x, y = self.centre("1F1")
        self.page.pinch(x, y, 100, 300)
        begin, end = self.ask("window()")
        self.assertAlmostEqual(end - begin, 14 / 3, delta=0.5)
        self.assertTrue(begin < 5 < end)
        self.assertEqual(self.page.text("#selection h2"), "No action selected")

    # ---- The keyboard alone ----

    def tab_to_timeline(self):
        for _ in range(30):
            self.page.press("Tab")
            if self.page.run("return document.activeElement.id") == "canvas":
                return
        self.fail("Tab does not lead to the timeline")

    def test_keyboard(self):
        self.open(SMALL)
        self.tab_to_timeline()
        self.page.press("Enter")
        self.assertEqual(self.tooltip(), HOVERED["0F0"])
        self.page.press("Right", "Right")
        self.assertEqual(self.tooltip(), HOVERED["0B0"])
        self.assertEqual(self.page.run("return document.getElementById('announcement').textContent"),
                         ". ".join(HOVERED["0B0"]))
        self.page.press("Down")  # what rank 1 did when 0B0 began
        self.assertEqual(self.tooltip()[0], "1F1 · rank 1")
        self.page.press("Enter")
        self.assertEqual(self.chains()[1], ["Needed by: 2, over 1 transfer", "1B1", "0B1"])
        self.page.press("Escape")
        self.assertEqual(self.page.text("#selection h2"), "No action selected")
        self.page.press("Escape", "+", "+")
        width = self.ask("window()")[1] - self.ask("window()")[0]
        self.assertAlmostEqual(width, 14 / 2.25)
        begin = self.ask("window()")[0]
        self.page.press("Right")
        self.assertGreater(self.ask("window()")[0], begin)
        self.page.press("Home")
        self.assertEqual(self.ask("window()"), [0, 14])
        self.page.press("-", "0")
        self.assertEqual(self.ask("window()"), [0, 14])
        self.page.press("Tab", shift=True)
        self.assertNotEqual(self.page.run("return document.activeElement.id"), "canvas")
        self.expect_quiet()

    def test_help_and_search_by_keyboard(self):
        self.open(SMALL)
        self.page.press("?")
        self.assertTrue(self.page.run("return document.getElementById('help').open"))
        self.page.press("Escape", "/", "1", "b", "1", "Enter")
        self.assertEqual(self.tooltip(), HOVERED["1B1"])
        self.assertEqual(self.page.text("#selection h2"), "1B1")
        self.page.press("9", "Enter")
        self.assertIn("no 1b19 here", self.page.text("#message"))
        self.expect_quiet()

    # ---- Several schedules ----

    def test_two_files_of_the_command(self):
        self.open("pair.html")
        self.assertEqual(self.page.run("return document.querySelectorAll('.card').length"), 2)
        self.assertEqual(self.page.text("#range"), "showing 0 – 14 of 0 – 14 ms")
        self.page.hover(*self.centre("0F0", 1))
        self.assertEqual(self.tooltip()[0], "0F0 · rank 0")
        self.shot("pair")

    def test_the_same_model_is_compared(self):
        self.open("pair.html")
        self.assertEqual(self.page.text(".card .compare"), "7.1 % shorter than the first")
        self.open(SMALL)
        self.load(SMALL)
        self.assertEqual(self.page.text(".card .compare"), "as long as the first")
        self.open(SMALL)
        self.load("by_stage.html")
        self.assertEqual(self.page.text(".card .compare"),
                         "not compared with the first: its times are in units of time")

    def test_schedules_that_cut_the_model_differently(self):
        self.open("cuts.html")
        cards = self.page.text("#cards")
        self.assertIn("times are of a rank's share of the model: a stage takes 1/2", cards)
        self.assertIn("13.6 % shorter than the first", cards)
        self.assertNotIn("not compared", cards)
        self.open("whole.html")
        self.load("stages.html")
        self.assertIn("not compared with the first: 8 stages instead of 4, of the same costs each, are a larger model",
                      self.page.text("#cards"))
        self.assertNotIn("longer", self.page.text("#cards"))

    def test_load_another(self):
        self.open(SMALL)
        self.assertEqual(self.load("overlaps.html"),
                         "overlaps.html is shown below; units differ: ms, none")
        self.assertEqual(self.page.run("return document.querySelectorAll('.card').length"), 2)
        self.assertIn("not compared with the first", self.page.text(".card .compare"))
        begin, end = self.ask("window()")
        self.assertEqual(begin, 0)
        self.assertGreater(end, 14)  # one axis for both
        self.page.click(*self.centre("0F1", 1))
        self.assertIn("overlaps.csv", self.page.text("#selection"))
        self.shot("loaded")
        self.page.run("document.querySelectorAll('.card button')[1].click()")
        self.page.frame()
        self.assertEqual(self.ask("window()"), [0, 14])
        self.assertEqual(self.load("data.json", self.data_of(SMALL)), "data.json is shown below")
        self.expect_quiet()

    def test_drop(self):
        self.open(SMALL)
        self.assertEqual(self.drop("dropped.json", self.data_of("pair.html")),
                         "dropped.json is shown below")
        self.assertEqual(self.page.run("return document.querySelectorAll('.card').length"), 3)
        self.assertTrue(self.page.run("return document.getElementById('drop').hidden"))

    def test_search_goes_on_in_the_next_schedule(self):
        self.open("pair.html")
        self.page.press("/", "1", "F", "0", "Enter")
        self.assertIn("small.csv", self.page.text("#selection"))
        self.page.press("Enter")
        self.assertIn("gpipe.csv", self.page.text("#selection"))

    # ---- What others might put in ----

    def test_hostile_name(self):
        self.open("hostile.html")
        self.assertIn("<img src=x onerror=", self.page.text("#cards"))
        data = json.loads(self.data_of(SMALL))
        data["pictures"][0]["name"] = HOSTILE
        data["pictures"][0]["unit"] = "<b>"
        self.load("hostile.json", json.dumps(data))
        self.assertEqual(self.page.run("return document.querySelectorAll('.card h2')[1].textContent"), HOSTILE)
        self.page.click(*self.centre("0F1", 1))
        self.page.hover(*self.centre("0F1", 1))
        self.assertEqual(self.page.run("return document.querySelectorAll('img, b b, main b').length"), 0)
        self.assertNotEqual(self.page.run("return document.title"), "taken")
        self.expect_quiet()

    def test_files_that_are_no_timelines(self):
        self.open(SMALL)
        good = json.loads(self.data_of(SMALL))
        cut = json.loads(json.dumps(good))
        cut["pictures"][0]["data"] = cut["pictures"][0]["data"][:400]
        wild = json.loads(json.dumps(good))
        wild["pictures"][0]["data"] = "/" * 4000
        other = dict(good, schema="weft-timeline/99")
        nameless = json.loads(json.dumps(good))
        del nameless["pictures"][0]["name"]
        bad = [("text", "hello"), ("empty", ""), ("null", "null"), ("list", "[]"), ("number", "7"),
               ("page", "<html></html>"), ("cut", json.dumps(cut)), ("wild", json.dumps(wild)),
               ("other", json.dumps(other)), ("nameless", json.dumps(nameless))]
        for name, text in bad:
            self.assertIn(f"bad-{name}.json is not a Weft timeline: ",
                          self.load(f"bad-{name}.json", text))
        self.page.hover(*self.centre("0B0"))
        self.assertEqual(self.tooltip(), HOVERED["0B0"])
        self.expect_quiet()

    def test_damaged_data_never_breaks_the_page(self):
        self.open(SMALL)
        data = json.loads(self.data_of("overlaps.html"))
        stream = bytearray(base64.b64decode(data["pictures"][0]["data"]))
        chance = random.Random(7)
        for _ in range(24):
            damaged = bytearray(stream)
            for _ in range(chance.choice([1, 2, 8])):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            data["pictures"][0]["data"] = base64.b64encode(damaged).decode()
            self.drop("damaged.json", json.dumps(data))
        cards = self.page.run("return document.querySelectorAll('.card').length")
        self.assertGreater(cards, 1)  # some damage shows as other times
        self.assertLess(cards, 25)    # other damage is found
        self.page.press("p", "p", "c", "+", "-", "0")
        self.page.run("document.querySelectorAll('.card button').forEach((b, k) => { if (k > 0) document.querySelectorAll('.card button')[1].click(); })")
        self.page.frame()
        self.page.press("0")
        self.page.hover(*self.centre("0B0"))
        self.assertEqual(self.tooltip(), HOVERED["0B0"])
        self.expect_quiet()

    def test_foreign_script_does_not_run(self):
        self.open(SMALL)
        self.page.run("""
            const script = document.createElement('script');
            script.textContent = "document.title = 'taken'";
            document.body.appendChild(script);""")
        self.assertEqual(self.page.run("return document.title"), "small.csv · Weft timeline")
        self.assertTrue(any("Content Security Policy" in entry["message"]
                            for entry in self.page.log_entries()))

    # ---- Agreement with the simulator ----

    def test_causes_add_up(self):
        for name in [SMALL, "table.html", "overlaps.html", "sharded.html", "queued.html", "pair.html"]:
            self.open(name)
            shown = self.ask("causesOf(0)")
            said = [times["idleByCause"] for times in self.ask("timesOf(0)")]
            for rank, (a, b) in enumerate(zip(shown, said)):
                for cause in range(6):
                    self.assertAlmostEqual(a[cause], b[cause], places=9, msg=f"{name} rank {rank} cause {cause}")

    def test_a_measured_page(self):
        self.open("run.html")
        cards = self.page.text("#cards").replace("\n", " ")
        with open("run.txt", encoding="utf-8") as file:
            step = re.search(r"of step (\d), the median", file.read()).group(1)
        self.assertIn(f"step {step} of 3, the median", cards)
        self.assertIn("from the costs that the run was given", cards)
        heads = self.page.run("return Array.from(document.querySelectorAll('#summary h3')).map((h) => h.innerText)")
        self.assertEqual(heads, ["Idle time in ms, a_table_whose_name_is_rather_long.csv, measured on threads",
                                 "Idle time in ms, a_table_whose_name_is_rather_long.csv, predicted"])
        for model in [0, 1]:
            shown, said = self.ask(f"causesOf({model})"), [times["idleByCause"] for times in self.ask(f"timesOf({model})")]
            for rank in [0, 1]:
                self.assertAlmostEqual(sum(shown[rank]), sum(said[rank]), places=6)
                self.assertAlmostEqual(shown[rank][0], said[rank][0], places=6)
            self.assertGreater(said[1][0], 0.5)  # rank 1: before its first action, in both
        self.assertNotIn(" 0.0 %", self.page.text("#summary"))

    def test_overlap(self):
        self.open("overlaps.html")
        self.page.press("/", *"0F7", "Enter")
        self.assertEqual(self.tooltip()[0], "(0F7;7B3)OVERLAP_F_B · rank 0")

    def test_every_op_is_known(self):
        self.open("tied.html")
        self.assertEqual(self.page.text("#message"), "")
        legend = self.page.text("#legend")
        for entry in ["F forward", "B backward", "activation transfer", "gradient transfer",
                      "UNSHARD parameters gathered", "RESHARD parameters dropped",
                      "REDUCE_GRAD gradients reduced", "TIE_GRAD gradients tied"]:
            self.assertIn(entry, legend)
        self.page.press("/", *"7TIE_GRAD", "Enter")
        self.assertIn("gradients tied, stage 7", self.page.text("#selection") + "\n".join(self.tooltip()))
        self.expect_quiet()

    # ---- Pixels ----

    def pixels_of(self, y):
        """The pixels of the plot at this height of the window: red, green, blue of each."""
        plot = self.ask("plot()")
        data = self.page.run("""
            const canvas = document.getElementById('canvas');
            const y = Math.floor((arguments[0] - canvas.getBoundingClientRect().top) * arguments[2]);
            const left = Math.round(arguments[1] * arguments[2]);
            return Array.from(canvas.getContext('2d').getImageData(left, y, arguments[3], 1).data)""",
                             y, plot["left"], plot["ratio"], math.floor(plot["width"] * plot["ratio"]))
        return [data[i:i + 3] for i in range(0, len(data), 4)]

    def colours(self, *ops):
        """The palette's colours of ops, by number in the op table, as numbers."""
        light = json.loads(self.data_of("uniform.html"))["palette"]["light"]["ops"]
        return [[int(light[op][i:i + 2], 16) for i in (1, 3, 5)] for op in ops]

    def expect_true_shares(self, events, action, exact):
        """Each column without idle time shows the mean colour of what it covers; with
        `exact` off it may be darker (a line between actions), never lighter."""
        plot, (begin, end) = self.ask("plot()"), self.ask("window()")
        pixels = self.pixels_of(self.box(action)["bottom"] - 2)
        length = (end - begin) / (plot["width"] * plot["ratio"])
        forward, backward = self.colours(*self.ops_named("F", "B"))
        checked = 0
        for column, found in enumerate(shares(events, begin, length, len(pixels))):
            if sum(found.values()) < 1 - 1e-6:
                continue  # idle in part
            checked += 1
            for channel in range(3):
                wanted = forward[channel] * found.get("F", 0) + backward[channel] * found.get("B", 0)
                where = f"column {column} of {action} at {plot['ratio']}, window {begin} - {end}"
                self.assertLessEqual(pixels[column][channel], wanted + 1.51, where)
                if exact:
                    self.assertGreaterEqual(pixels[column][channel], wanted - 1.51, where)
        return checked

    def ops_named(self, *names):
        """Their numbers, from the colours of the legend, which the command's op table gives."""
        legend = self.page.run("""
            return Array.from(document.querySelectorAll('#legend .entry')).filter((e) => e.querySelector('.swatch'))
              .map((e) => [e.innerText.split(' ')[0], e.querySelector('.swatch').style.backgroundColor])""")
        light = json.loads(self.data_of("uniform.html"))["palette"]["light"]["ops"]
        texts = ["rgb({}, {}, {})".format(*(int(c[i:i + 2], 16) for i in (1, 3, 5))) for c in light]
        return [texts.index(dict(legend)[name]) for name in names]

    def test_narrow_actions_have_their_share_of_each_pixel(self):
        events = timeline_of("uniform.csv", {"F": 1, "B": 2})
        self.assertEqual(max(end for rank in events for _, end, _ in rank), 957)
        try:
            for ratio in [1, 1.25, 2]:
                self.page.emulate_screen(ratio)
                self.open("uniform.html")
                self.assertEqual(self.ask("plot()")["ratio"], ratio)
                for rank in [0, 5, 11]:
                    checked = self.expect_true_shares(events[rank], f"{rank}F0", exact=True)
                    self.assertGreater(checked, 600 * ratio)  # warm-up and the steady phase
                self.page.press("+", "+")  # some actions now have a line where they begin
                for rank in [0, 5, 11]:
                    self.expect_true_shares(events[rank], f"{rank}F0", exact=False)
        finally:
            self.page.emulate_screen(0)

    def test_later_stages_of_a_rank_are_paler_as_in_svg(self):
        for theme in ["light", "dark"]:
            self.page.emulate_dark(theme == "dark")
            self.open("zbv.html")
            with open(f"zbv_{theme}.svg", encoding="utf-8") as file:
                svg = file.read()
            seen = set()
            for action in ["0F0", "7F0", "0I0", "7I0", "0W0", "7W0"]:
                box = self.box(action)
                pixels = self.pixels_of(box["bottom"] - 2)
                x = (box["left"] + box["right"]) / 2 - self.ask("plot()")["left"]
                colour = "#%02x%02x%02x" % tuple(pixels[int(x)])
                self.assertIn(f'fill="{colour}"', svg, action)
                seen.add(colour)
            self.assertEqual(len(seen), 6)
            words = [text for text in re.findall(r">([^<]*)</text>", svg) if "underlined" in text]
            self.assertEqual(len(words), 1)
            self.assertIn(words[0].replace("&#39;", "’"), self.page.text("#legend"))
        self.page.emulate_dark(False)
        self.open(SMALL)
        self.assertNotIn("underlined", self.page.text("#legend"))

    # ---- Looks, size ----

    def test_buttons_have_names_and_no_odd_glyphs(self):
        self.open(SMALL)
        for text, name, picture in self.page.run("""
                return Array.from(document.querySelectorAll('button')).map((b) =>
                  [b.textContent.trim(), b.getAttribute('aria-label') || b.textContent, b.querySelector('svg') !== null])"""):
            self.assertRegex(text, "^[A-Za-z: ?+\u2212\u00d7\u2026]*$")
            self.assertTrue(name.strip())
            self.assertTrue(text or picture, name)
        rows = "return weftTimeline.boxOf(0, '0F0')"
        before = self.page.run(rows)
        self.page.run("document.getElementById('rows-less').click()")
        self.page.frame()
        after = self.page.run(rows)
        self.assertLess(after["bottom"] - after["top"], before["bottom"] - before["top"])

    def test_small_window(self):
        try:
            self.page.emulate_screen(1.25, 801, 700)
            self.open("uniform.html")  # higher than the window, and details below it
            top, bottom = self.page.run("""
                const box = document.getElementById('side').getBoundingClientRect();
                return [box.top, box.bottom]""")
            self.assertLess(top, 500)
            self.assertEqual(bottom, 700)
            right = self.page.run("""
                const canvas = document.getElementById('canvas');
                return Array.from(canvas.getContext('2d').getImageData(canvas.width - 1, 300, 1, 1).data)""")
            self.assertEqual(right, [255, 255, 255, 255])  # no seam at the edge
        finally:
            self.page.emulate_screen(0)

    def test_numbers_have_four_digits_and_a_unit(self):
        self.open("digits.html")  # F 1234.56789, B 1.0123456
        self.assertIn("makespan 4942 ms", self.page.text("#cards").replace("\n", " "))
        self.page.press("/", *"1B0", "Enter")
        self.assertEqual(self.tooltip()[2], "2469.136 \u2013 2470.148 ms, takes 1.012 ms")
        self.assertEqual(self.page.text("#selection dd:nth-of-type(3)"), "1.012 ms")
        self.assertIn("Idle time in ms", self.page.text("#summary"))
        for cell in self.page.run("return Array.from(document.querySelectorAll('#summary td')).map((c) => c.innerText)"):
            self.assertRegex(cell, r"^(\d{0,5}|\d\.\d{1,3}|\d\d\.\d{1,2}|\d{3}\.\d)$")
        self.open("whole.html")
        self.assertIn("makespan 33 units of time", self.page.text("#cards").replace("\n", " "))
        self.page.hover(*self.centre("0F0"))
        self.assertEqual(self.tooltip()[2], "0 \u2013 1 units, takes 1 unit")
        self.assertEqual(self.page.text("#range"), "showing 0 \u2013 33 of 0 \u2013 33 units")

    def test_dark(self):
        background = "return getComputedStyle(document.body).backgroundColor"
        self.open("pair.html")
        self.assertEqual(self.page.run(background), "rgb(255, 255, 255)")
        self.page.emulate_dark(True)
        dark = self.page.run(background)
        self.shot("dark")
        self.page.press("t")
        self.assertEqual(self.page.run(background), "rgb(255, 255, 255)")
        self.page.emulate_dark(False)
        self.assertNotEqual(dark, "rgb(255, 255, 255)")

    def test_words_can_be_read_and_buttons_hit(self):
        for dark in (True, False):
            self.page.emulate_dark(dark)
            for name in ["pair.html", "by_stage.html", "run.html"]:
                self.open(name)
                self.assertEqual(self.page.run(HARD_TO_USE), [], name)
                self.page.press("/", *"0F1", "Enter")
                self.assertEqual(self.page.run(HARD_TO_USE), [], f"{name}, an action selected")
                self.page.press("Escape", "Escape", "p")
                self.assertEqual(self.page.run(HARD_TO_USE), [], f"{name}, the critical path")

    def test_colour_by_stage(self):
        self.open("overlaps.html")
        self.page.press("c", "m", "x")
        self.assertIn("stage 7", self.page.text("#legend"))
        self.assertNotIn("transfer", self.page.text("#legend"))
        self.shot("stages")
        self.open("by_stage.html")
        self.assertIn("stage 1", self.page.text("#legend"))
        self.assertIn("F forward", self.page.text("#legend"))  # by lightness
        self.assertIn("B backward", self.page.text("#legend"))

    def test_all_ranks_are_in_view(self):
        self.open("large.html")
        boxes = [self.box(f"{rank}F0") for rank in range(64)]
        height = self.page.run("return document.getElementById('canvas').getBoundingClientRect().bottom")
        self.assertLessEqual(boxes[-1]["bottom"], height)
        self.assertGreater(boxes[-1]["bottom"], height - 80)  # and use it
        self.assertIn("mixed: actions that share a pixel, each by its time", self.page.text("#legend"))
        self.page.press("]")
        self.assertGreater(self.box("63F0")["bottom"], height)
        self.page.press("0")
        self.assertEqual(self.box("63F0")["bottom"], boxes[-1]["bottom"])
        self.open("whole.html")
        self.assertNotIn("mixed", self.page.text("#legend"))
        last = self.page.run("""
            const box = weftTimeline.boxOf(0, '3F0');
            const row = (box.top - weftTimeline.boxOf(0, '0F0').top) / 3;
            return [box.top + row, document.getElementById('canvas').getBoundingClientRect().bottom]""")
        self.assertAlmostEqual(*last, delta=30)  # four ranks use all of the height

    def test_finding_does_not_show_what_is_before_the_start(self):
        self.open("large.html")
        self.page.press("/", *"2F0", "Enter")
        begin, end = self.ask("window()")
        self.assertGreaterEqual(begin, 0)
        self.assertLess(end, 200)
        self.page.press("Escape", "/", *"0B255", "Enter")
        self.assertLessEqual(self.ask("window()")[1], 1853)

    def labels(self, name):
        """What is written into actions in a frame of this page, and in which sizes."""
        self.open(name)
        return self.page.run("""
            const drawn = [];
            const plain = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
              if (this.font.includes('mono')) drawn.push([text, this.font]);
              plain.call(this, text, ...rest);
            };
            document.getElementById('memory').click();
            return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
              CanvasRenderingContext2D.prototype.fillText = plain;
              done(drawn);
            })));""")

    def test_labels_have_one_form(self):
        for name in ["whole.html", "zbv.html", "overlaps.html", SMALL, "pair.html"]:
            drawn = [(text, font) for text, font in self.labels(name) if "RECV" not in text and "SEND" not in text]
            self.assertGreater(len(drawn), 5, name)
            self.assertEqual(len({text.isdigit() for text, _ in drawn}), 1, name)
            self.assertEqual(len({font for _, font in drawn}), 1, name)

    def test_critical_path_goes_off_with_a_selection(self):
        self.open(SMALL)
        pressed = "return document.getElementById('path').getAttribute('aria-pressed')"
        self.page.press("p")
        self.assertEqual(self.page.run(pressed), "true")
        self.page.click(*self.centre("1B1"))
        self.assertEqual(self.page.run(pressed), "false")
        self.page.press("Escape")
        self.assertIn("No action selected", self.page.text("#selection"))

    def test_printed(self):
        self.open("pair.html")
        forward, backward = self.colours(*self.ops_named("F", "B"))
        for dark in [False, True]:
            self.page.emulate_dark(dark)
            self.open("pair.html")
            before = self.pixels_of(self.box("0F0")["bottom"] - 2)
            pdf = self.page.print()
            sizes = page_sizes(pdf)
            self.assertEqual(len(sizes), 1)
            self.assertGreater(*sizes[0])  # across
            self.assertGreater(pixels_of(pdf, forward), 300)
            self.assertGreater(pixels_of(pdf, backward), 600)
            self.assertEqual(pixels_of(pdf, (0, 0, 0)), 0)  # no black box
            self.page.frame()
            self.assertEqual(self.pixels_of(self.box("0F0")["bottom"] - 2), before)  # the screen is as it was
            self.assertEqual(self.page.run("return document.documentElement.dataset.theme"), "dark" if dark else "light")
        self.page.emulate_dark(False)

    def test_printed_with_all_ranks(self):
        self.open("tall.html")  # a real print of so many stripes takes longer than a driver waits
        width, height, lowest = self.page.run("""
            window.dispatchEvent(new Event('beforeprint'));
            const { width, height } = document.getElementById('print');
            const top = Math.floor(0.98 * height);
            const pixels = document.getElementById('print').getContext('2d').getImageData(0, top, width, height - top).data;
            let backward = 0;
            for (let k = 0; k < pixels.length; k += 4) {
              backward += pixels[k] > 180 && pixels[k + 1] < 140 && pixels[k + 2] < 80;
            }
            window.dispatchEvent(new Event('afterprint'));
            return [width, height, backward]""")
        self.assertGreater(height / width * 1040, 700 * 4)  # as wide as a sheet, rows of 4 pixels
        self.assertGreater(lowest, 10)  # the last ranks are there

    def test_the_legend_on_paper_is_that_of_the_paper(self):
        for name, mixed in [("zbv.html", False), ("large.html", True)]:
            self.open(name)
            # `chromium --print-to-pdf` gives the page another size while it prints, without the canvas.
            self.page.run("""
                window.addEventListener('beforeprint', () => {
                  document.getElementById('scroller').style.display = 'none';
                  window.dispatchEvent(new Event('resize'));
                  window.legendOnPaper = document.getElementById('legend').textContent;
                });""")
            self.page.print()
            self.page.run("document.getElementById('scroller').style.display = ''; window.dispatchEvent(new Event('resize'))")
            self.page.frame()
            self.assertEqual("mixed" in self.page.run("return window.legendOnPaper"), mixed, name)
            self.assertEqual("mixed" in self.page.text("#legend"), mixed, name)

    def test_large(self):
        self.open("large.html")
        self.assertEqual(self.page.text("#message"), "")
        self.assertGreater(self.ask("eventCount(0)"), 150000)
        self.assertLess(os.path.getsize("large.html"), 15e6)
        start = self.ask("startTime()")
        times = []
        for key in "cc++++----":
            self.page.press(key)
            times.append(self.ask("frameTime()"))
        self.page.press("0")
        self.shot("large")
        self.page.press("/", *"40F99", "Enter")
        self.assertEqual(self.tooltip()[0], "40F99 · rank 40")
        self.assertEqual(self.chains()[0][:2], ["Needs: 40, over 40 transfers", "0F99"])
        self.shot("large_found")
        self.expect_quiet()
        print(f"\n64 x 256: {os.path.getsize('large.html') / 1e6:.1f} MB, ready after {start:.0f} ms,"
              f" frames {min(times):.0f} to {max(times):.0f} ms")


if __name__ == "__main__":
    unittest.main(verbosity=1)

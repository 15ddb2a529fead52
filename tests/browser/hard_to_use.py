"""What is hard to use in a page: as JavaScript that lists it."""

# What is harder to read than 4.5:1 allows, and what is smaller than 24 pixels, the minimum of WCAG 2.2;
# files are chosen by the label of their field.
HARD_TO_USE = """
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
      const [r, g, b] = colour.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const behind = (e) => {
      const [r, g, b, alpha = 1] = numbers(getComputedStyle(e).backgroundColor);
      return alpha > 0 ? [r, g, b] : behind(e.parentElement);
    };
    const seen = (e) => e.getBoundingClientRect().width > 1 && e.getBoundingClientRect().right > 0;
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const e = node.parentElement;
      if (!node.data.trim() || !seen(e) || e.closest('svg, script, style, :disabled')) continue;
      const pair = [light(numbers(getComputedStyle(e).color).slice(0, 3)), light(behind(e))];
      const ratio = Math.max(...pair) / Math.min(...pair);
      if (ratio < 4.5) found.push(`${node.data.trim()}: ${ratio.toFixed(2)}`);
    }
    for (const e of document.querySelectorAll('button, a, select, summary, input:not([type=file])')) {
      const { width, height } = e.getBoundingClientRect();
      if (seen(e) && (width < 24 || height < 24)) found.push(`${e.textContent.trim()}: ${width} x ${height}`);
    }
    return found;"""

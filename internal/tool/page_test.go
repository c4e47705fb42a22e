package tool

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

// Broken if common markup does not read well, or odd markup loses text.
func TestHTMLText(t *testing.T) {
	base, err := url.Parse("https://example.com/dir/page")
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"a  b\n c":                              "a b c",
		"<p>one</p><p>two</p>":                  "one\n\ntwo",
		"<div>one</div><div>two</div>":          "one\ntwo",
		"one<br>two<br/>three":                  "one\ntwo\nthree",
		"<h2>Head</h2>text":                     "## Head\n\ntext",
		"<ul><li>a</li> <li>b</li></ul>":        "- a\n- b",
		"<pre>a\n  b</pre>c":                    "```\na\n  b\n```\n\nc",
		"a <b>b</b>c <i>d</i>":                  "a bc d",
		`<a href="x">y</a> z`:                   "[y](https://example.com/dir/x) z",
		`<a href="#top">y</a>`:                  "y",
		`<a href="javascript:x">y</a>`:          "y",
		`<a class=q href='/a?b=c&amp;d'>y</a>`:  "[y](https://example.com/a?b=c&d)",
		`<img src=x alt="a cat">`:               "[image: a cat]",
		"<table><tr><td>1<td>2</table>":         "| 1 | 2",
		"x<script>alert('<p>')</script>y":       "xy",
		"x<STYLE>p</STYLE >y":                   "xy",
		"x<!-- <p>no</p> -->y":                  "xy",
		"x<svg/>y":                              "xy",
		"x<script>never closed":                 "x",
		"x<!-- never closed":                    "x",
		"1 < 2 && 3 > 2":                        "1 < 2 && 3 > 2",
		"a &lt;b&gt; &nbsp;&eacute;":            "a <b> é",
		"broken <a href=":                       "broken <a href=",
		"<title>t</title>x<title>no</title>":    "x",
		"<blockquote>q</blockquote>":            "> q",
		"":                                      "",
		"<textarea>typed</textarea><p></p><p/>": "",
	} {
		if _, got := htmlText(in, base); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if title, _ := htmlText("<TITLE>\n A &amp;\n B</TITLE>", base); title != "A & B" {
		t.Errorf("title %q", title)
	}
}

// Broken if a page can be built that takes more than linear time to read.
func TestHTMLTextIsLinear(t *testing.T) {
	base := &url.URL{Scheme: "https", Host: "example.com"}
	for _, unit := range []string{"<", "<a ", "</", "<!--", "<a href='", "&", "<p>", "<script>", "<title>", "<pre>",
		"<a b c d=e f>", "&#x"} {
		page := strings.Repeat(unit, maxPage/len(unit))
		begun := time.Now()
		htmlText(page, base)
		if d := time.Since(begun); d > 20*time.Second {
			t.Errorf("%q: %v", unit, d)
		}
	}
}

// Broken if any page makes the reader panic or grow what it reads without bound.
func FuzzHTMLText(f *testing.F) {
	base := &url.URL{Scheme: "https", Host: "example.com"}
	f.Add("<p>a<a href=b>c</a><pre>d</pre><li>e<script>f</script>")
	f.Fuzz(func(t *testing.T, page string) {
		if _, text := htmlText(page, base); len(text) > 64*len(page)+64 {
			t.Errorf("%d bytes from %d", len(text), len(page))
		}
	})
}

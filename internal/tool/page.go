package tool

import (
	"fmt"
	"html"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// read turns a body into text by its content type.
func (p *page) read(contentType string, body []byte, base *url.URL) {
	if contentType == "" {
		contentType = http.DetectContentType(body)
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		media, _, _ = strings.Cut(strings.ToLower(contentType), ";")
		media = strings.TrimSpace(media)
	}
	p.media = clip(media)
	switch {
	case media == "text/html" || media == "application/xhtml+xml":
		p.title, p.text = htmlText(decode(body, params["charset"]), base)
	case strings.HasPrefix(media, "text/"), media == "application/json", media == "application/xml",
		media == "application/javascript", strings.HasSuffix(media, "+json"), strings.HasSuffix(media, "+xml"):
		p.text = decode(body, params["charset"])
	default:
		p.text = fmt.Sprintf("(%d bytes that are not text were left out)", len(body))
	}
}

// windows1252 is what the bytes 0x80 to 0x9f stand for in pages that say Latin-1.
const windows1252 = "€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ"

// decode makes UTF-8 of a body. Other encodings than UTF-8 and Latin-1 keep their ASCII part.
func decode(body []byte, charset string) string {
	switch strings.ToLower(charset) {
	case "iso-8859-1", "latin1", "windows-1252", "us-ascii":
	default:
		return string(body)
	}
	high := []rune(windows1252)
	var b strings.Builder
	for _, c := range body {
		if c >= 0x80 && c < 0xa0 {
			b.WriteRune(high[c-0x80])
		} else {
			b.WriteRune(rune(c))
		}
	}
	return b.String()
}

// hidden are elements whose content is not for reading.
var hidden = map[string]bool{"script": true, "style": true, "noscript": true, "template": true, "svg": true,
	"iframe":   true,
	"textarea": true}

// before is what the start of an element puts into the text; "\n" stands for the end of a line, "\n\n" for an
// empty one.
var before = map[string]string{"p": "\n\n", "div": "\n", "section": "\n\n", "article": "\n\n", "header": "\n",
	"footer": "\n",
	"main":   "\n", "nav": "\n", "aside": "\n", "br": "\n", "hr": "\n\n---\n\n", "ul": "\n", "ol": "\n", "li": "\n- ", "dl": "\n",
	"dt": "\n", "dd": "\n  ", "table": "\n\n", "tr": "\n", "td": " | ", "th": " | ", "blockquote": "\n\n> ", "pre": "\n\n```\n",
	"form": "\n", "figure": "\n", "figcaption": "\n", "h1": "\n\n# ", "h2": "\n\n## ", "h3": "\n\n### ", "h4": "\n\n#### ",
	"h5": "\n\n##### ", "h6": "\n\n###### "}

// after is the same for the end of an element.
var after = map[string]string{"p": "\n\n", "div": "\n", "section": "\n", "article": "\n", "li": "\n", "tr": "\n",
	"table": "\n\n",
	"pre":   "\n```\n\n", "blockquote": "\n\n", "h1": "\n\n", "h2": "\n\n", "h3": "\n\n", "h4": "\n\n", "h5": "\n\n", "h6": "\n\n",
	"ul": "\n", "ol": "\n", "header": "\n", "footer": "\n", "main": "\n", "nav": "\n", "aside": "\n"}

// htmlText returns the title and the readable text of a page. It is a reader's view, not a parser: it never
// fails, and its time is linear in the length of the page whatever the page is.
func htmlText(page string, base *url.URL) (title, text string) {
	w := &writer{base: base}
	for page != "" {
		i := strings.IndexByte(page, '<')
		if i < 0 {
			w.add(page)
			break
		}
		w.add(page[:i])
		page = page[i:]
		if strings.HasPrefix(page, "<!--") {
			_, page, _ = strings.Cut(page, "-->")
			continue
		}
		end := strings.IndexByte(page, '>')
		if end < 0 || len(page) < 2 || !startsTag(page[1]) {
			if end < 0 {
				w.add(page)
				break
			}
			w.add(page[:1])
			page = page[1:]
			continue
		}
		tag := page[1:end]
		page = page[end+1:]
		name, closing := tagName(tag)
		switch {
		case !closing && (hidden[name] || name == "title") && !strings.HasSuffix(tag, "/"):
			var content string
			content, page = element(page, name)
			if name == "title" && title == "" {
				title = strings.Join(strings.Fields(html.UnescapeString(content[:min(len(content), 1000)])), " ")
			}
		case closing:
			w.close(name)
		default:
			w.open(name, tag)
		}
	}
	return title, strings.TrimSpace(w.String())
}

func startsTag(c byte) bool {
	return c == '/' || c == '!' || c == '?' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// tagName returns the lower-case name of a tag without its brackets.
func tagName(tag string) (name string, closing bool) {
	tag, closing = strings.CutPrefix(tag, "/")
	if i := strings.IndexAny(tag, " \t\r\n\f/"); i >= 0 {
		tag = tag[:i]
	}
	return strings.ToLower(tag[:min(len(tag), 32)]), closing
}

// element cuts page at the end tag of the element that has just begun, or at the page's end.
func element(page, name string) (content, rest string) {
	for at := 0; ; {
		i := strings.Index(page[at:], "</")
		if i < 0 {
			return page, ""
		}
		at += i + 2
		if len(page)-at >= len(name) && strings.EqualFold(page[at:at+len(name)], name) {
			_, rest, _ := strings.Cut(page[at:], ">")
			return page[:at-2], rest
		}
	}
}

// writer collects text: white space is folded except in pre, and empty lines never come in twos.
type writer struct {
	strings.Builder
	base  *url.URL
	pre   int
	lines int    // line ends at the end of the text, at most 2
	space bool   // white space is due before the next word
	href  string // of the link that is open
}

func (w *writer) add(raw string) {
	if raw == "" {
		return
	}
	s := html.UnescapeString(raw)
	if w.pre > 0 {
		w.put(s)
		return
	}
	for s != "" {
		i := strings.IndexFunc(s, isSpace)
		if i != 0 {
			word := s
			if i > 0 {
				word = s[:i]
			}
			if w.space && w.lines == 0 && w.Len() > 0 {
				w.WriteByte(' ')
			}
			w.put(word)
			w.space = false
			s = s[len(word):]
			continue
		}
		w.space = true
		s = strings.TrimLeftFunc(s, isSpace)
	}
}

func isSpace(r rune) bool {
	return r == ' ' || r == '\t' || r == '\n' || r == '\r' || r == '\f' || r == '\u00a0'
}

// put writes text as it is.
func (w *writer) put(s string) {
	if s == "" {
		return
	}
	w.WriteString(s)
	w.lines = 0
	if strings.HasSuffix(s, "\n") {
		w.lines = 1
	}
}

// mark writes an element's own text: leading line ends are made, not added to those that are there.
func (w *writer) mark(s string) {
	if s == "" {
		return
	}
	rest := strings.TrimLeft(s, "\n")
	for n := len(s) - len(rest); w.lines < n && w.Len() > 0; w.lines++ {
		w.WriteByte('\n')
	}
	if rest == "" {
		w.space = false
		return
	}
	if body := strings.TrimRight(rest, "\n"); body != rest {
		w.put(body)
		w.mark(rest[len(body):])
		return
	}
	w.put(rest)
	w.space = false
}

func (w *writer) open(name, tag string) {
	w.mark(before[name])
	switch name {
	case "pre":
		w.pre++
	case "img":
		if alt := attribute(tag, "alt"); alt != "" {
			w.add(" [image: " + alt + "] ")
		}
	case "a":
		if w.href = w.link(attribute(tag, "href")); w.href != "" {
			w.add("[")
		}
	}
}

func (w *writer) close(name string) {
	if name == "pre" && w.pre > 0 {
		w.pre--
	}
	if name == "a" && w.href != "" {
		space := w.space
		w.space = false
		w.put("](" + w.href + ")")
		w.space, w.href = space, ""
	}
	w.mark(after[name])
}

// link returns where an anchor leads, absolute, or "" when a reader cannot go there.
func (w *writer) link(href string) string {
	if href == "" || href[0] == '#' || len(href) > 500 {
		return ""
	}
	u, err := w.base.Parse(href)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	return u.String()
}

// attribute returns the value of one attribute of a tag, or "".
func attribute(tag, name string) string {
	for {
		i := strings.IndexAny(tag, " \t\r\n\f")
		if i < 0 {
			return ""
		}
		tag = strings.TrimLeft(tag[i:], " \t\r\n\f")
		if len(tag) <= len(name) || !strings.EqualFold(tag[:len(name)], name) {
			continue
		}
		v := strings.TrimLeft(tag[len(name):], " \t\r\n\f")
		v, ok := strings.CutPrefix(v, "=")
		if !ok {
			continue
		}
		v = strings.TrimLeft(v, " \t\r\n\f")
		if v != "" && (v[0] == '"' || v[0] == '\'') {
			v, _, _ = strings.Cut(v[1:], v[:1])
		} else if j := strings.IndexAny(v, " \t\r\n\f"); j >= 0 {
			v = v[:j]
		}
		return html.UnescapeString(strings.TrimSpace(v))
	}
}

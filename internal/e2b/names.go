package e2b

import (
	"cmp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// Names of templates and snapshots as E2B has them: [NAMESPACE/]NAME[:TAG], in any case and with spaces around
// each part. Here is one namespace, which means nothing.

// clean is a name, a tag or an id as it is compared.
func clean(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// cutName takes a name apart.
func cutName(s string) (name, tag string, tagged bool) {
	name, tag, tagged = strings.Cut(s, ":")
	if space, alias, ok := strings.Cut(name, "/"); ok {
		name = clean(space) + "/" + clean(alias)
	}
	return strings.TrimPrefix(clean(name), namespace), clean(tag), tagged
}

// templateRef is a name as control takes it: without what means nothing here, and without the tag that a name
// means which says none.
func templateRef(s string) string {
	name, tag, tagged := cutName(s)
	if !tagged || tag == outboard.DefaultTag {
		return name
	}
	return name + ":" + tag
}

// ownName is a name that something here is to get, with its tag.
func ownName(s string) (name, tag string, tagged bool, err error) {
	name, tag, tagged = cutName(s)
	if space, _, other := strings.Cut(name, "/"); other {
		return "", "", false, outboard.Errorf(outboard.Invalid,
			"the namespace %q is not this server's: leave it out, or say %q", clip(space), strings.TrimSuffix(namespace,
				"/"))
	}
	return name, tag, tagged, nil
}

// cleanTags are tags as they are compared.
func cleanTags(tags []string) []string {
	out := make([]string, len(tags))
	for i, t := range tags {
		out[i] = clean(t)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// clip bounds what of a request is repeated in an answer.
func clip(s string) string { return text.Clip(s, 100) }

// oneOf reads a parameter that is one of some words; the first is meant where it is left out.
func (r *request) oneOf(name string, words ...string) (string, error) {
	got := cmp.Or(r.URL.Query().Get(name), words[0])
	if !slices.Contains(words, got) {
		return "", outboard.Errorf(outboard.Invalid, "%s must be %s, not %q", name, strings.Join(words, " or "),
			clip(got))
	}
	return got, nil
}

// levels are those of lines of logs, least first.
var levels = []string{"debug", "info", "warn", "error"}

// infoLevel is where in levels the lines of a box's log are.
const infoLevel = 1

// level reads the least level that is asked for.
func (r *request) level() (int, error) {
	got, err := r.oneOf("level", levels...)
	return slices.Index(levels, got), err
}

// limit reads how many there should be: fallback where it is left out, and at most a number.
func (r *request) limit(fallback, most int) (int, error) {
	if !r.URL.Query().Has("limit") {
		return fallback, nil
	}
	n, err := r.number("limit")
	if err != nil || n > most {
		return 0, outboard.Errorf(outboard.Invalid, "limit must be 0 to %d, not %q", most,
			clip(r.URL.Query().Get("limit")))
	}
	return n, nil
}

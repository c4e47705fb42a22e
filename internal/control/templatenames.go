package control

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// What templates, snapshots and tags can be called, and what a name means.

var (
	templateName = regexp.MustCompile(`^[a-z0-9_-]+$`)
	templateTag  = regexp.MustCompile(`^[a-z0-9_.-]+$`)
	looksLikeID  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// cutTag splits NAME:TAG.
func cutTag(ref string) (name, tag string) {
	name, tag, ok := strings.Cut(ref, ":")
	if !ok || tag == "" {
		tag = outboard.DefaultTag
	}
	return name, tag
}

func checkTags(tags []string) error {
	if len(tags) > maxTemplateTags {
		return invalid("tags: at most %d", maxTemplateTags)
	}
	for _, t := range tags {
		switch {
		case t == "":
			return invalid("a tag needs a name")
		case len(t) > maxTemplateName:
			return tooLongName("tag", t)
		case !templateTag.MatchString(t):
			return invalid("a tag cannot be called %s: use lower-case letters, digits, and _ . -", quote(t))
		case looksLikeID.MatchString(t):
			return invalid("a tag cannot be called %s: ids of builds look like that", quote(t))
		}
	}
	return nil
}

// reservedNames are what no template or snapshot can be called, with the reason.
var reservedNames = map[string]string{BaseTemplate: "that is the server's own template",
	"tags": "the API has a path of that name", "aliases": "the API has a path of that name"}

func tooLongName(what, name string) error {
	return invalid("a %s cannot be called %s: that has %d bytes, and a name has at most %d", what, quote(name),
		len(name), maxTemplateName)
}

// checkTemplateName says why nothing of a kind can be called so.
func checkTemplateName(kind, name string) error {
	switch why := reservedNames[name]; {
	case name == "":
		return invalid("a %s needs a name", kind)
	case len(name) > maxTemplateName:
		return tooLongName(kind, name)
	case !templateName.MatchString(name):
		return invalid("a %s cannot be called %s: use lower-case letters, digits, - and _", kind, quote(name))
	case why != "":
		return invalid("a %s cannot be called %s: %s", kind, quote(name), why)
	case outboard.TemplateID(name).Valid(), outboard.SnapshotID(name).Valid():
		return invalid("a %s cannot be called %s: ids look like that", kind, quote(name))
	}
	return nil
}

// changeable refuses to change what is the server's own.
func changeable(name string) error {
	if name == BaseTemplate {
		return outboard.Errorf(outboard.Denied, "template %s is the server's own, and nobody changes it", BaseTemplate)
	}
	return nil
}

// tagOf returns what a tag of a template means.
func tagOf(m *outboard.Template, tag string) (outboard.TemplateTag, error) {
	t, ok := m.Tags[tag]
	if ok {
		return t, nil
	}
	have := slices.Sorted(maps.Keys(m.Tags))
	if len(have) == 0 {
		return t, outboard.Errorf(outboard.NotFound, "template %s has no build that is ready yet", m.Name).
			WithHint("outboard template show %s", m.Name)
	}
	return t, outboard.Errorf(outboard.NotFound, "template %s has no build that is ready with the tag %s; it has %s",
		m.Name, quote(tag), quote(strings.Join(have, " ")))
}

// onlyDefault says that what has no builds has no other tag.
func onlyDefault(kind, name, tag string) error {
	return outboard.Errorf(outboard.NotFound, "%s %s has no tag %s; it has %s only", kind, name, quote(tag),
		outboard.DefaultTag)
}

// unlessSnapshot is err, that there is no template of a name, but where a snapshot is called that.
func (c *Control) unlessSnapshot(ctx context.Context, by outboard.Caller, name string, err error) error {
	name, _, _ = strings.Cut(name, ":")
	if _, none := c.Snapshot(ctx, by, name); none != nil {
		return err
	}
	return outboard.Errorf(outboard.Unimplemented, "%s is a snapshot: sandboxes begin with it, and templates do not "+
		"here", name).
		WithHint("make a sandbox of it, or put what it has into the steps of a build")
}

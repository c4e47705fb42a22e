package control

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/store"
)

// Limits of a template.
const (
	maxTemplateName  = 128
	maxTemplateTags  = 100      // of one template
	maxTemplateSteps = 100      // the stack of a sandbox has room for some more
	maxCommand       = 64 << 10 // bytes of one
	maxTemplateText  = 512 << 10
	// MaxTemplateUpload bounds the archive of one COPY step, compressed.
	MaxTemplateUpload = 1 << 30
	// maxListedBuilds bounds the builds of a template that can be listed: the newest.
	maxListedBuilds = 1000
	// maxLogPage bounds the lines of a log that are returned at a time.
	maxLogPage = 1000
	// uploadLinkTTL is how long a link for an upload is good.
	uploadLinkTTL = time.Hour
)

var (
	uploadHash  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
	userOrGroup = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
	fileMode    = regexp.MustCompile(`^0?[0-7]{3}$`)
)

// TemplateStep is a step as a client says it.
type TemplateStep struct {
	outboard.TemplateStep
	Upload string          // copy: the name of what was uploaded for the template,
	File   outboard.FileID // or a file with the archive
	Force  bool            // do it again, and all that follow
}

// TemplateBuildSpec is what is to be built, as a client says it.
type TemplateBuildSpec struct {
	Image     string         // it begins with, or From; neither: the host's programs
	From      string         // another template: NAME[:TAG], an id, or BaseTemplate
	Login     *RegistryLogin // for Image; nil: what the organization has for its registry, or who the server is there
	Isolation string
	Limits    outboard.SandboxLimits // zero: those of the request
	Hosts     []string
	Steps     []TemplateStep
	Start     string
	Ready     string
	Warm      int  // sandboxes of it that wait for somebody
	Force     bool // do every step again
}

// RequestTemplateBuild makes a build that waits to be told what to build, of the template of a name, which is
// made when there is none. ref is NAME or NAME:TAG; the build will have the tag, and tags. Without any it has
// DefaultTag.
func (c *Control) RequestTemplateBuild(ctx context.Context, by outboard.Caller, ref string, tags []string,
	limits outboard.SandboxLimits) (outboard.Template, outboard.TemplateBuild, error) {
	return c.requestBuild(ctx, by, ref, tags, limits, "")
}

// requestBuild is RequestTemplateBuild. host is this one where it begins the build at once, "" where the client
// says later what to build.
func (c *Control) requestBuild(ctx context.Context, by outboard.Caller, ref string, tags []string,
	limits outboard.SandboxLimits, host string) (outboard.Template, outboard.TemplateBuild, error) {
	var b outboard.TemplateBuild
	if err := c.boxes(by); err != nil {
		return outboard.Template{}, b, err
	}
	name, tag, tagged := strings.Cut(ref, ":")
	if err := checkTemplateName("template", name); err != nil {
		return outboard.Template{}, b, err
	}
	if err := limits.Check(); err != nil {
		return outboard.Template{}, b, invalid("limits.%w", err)
	}
	if tags = slices.Clone(tags); tagged {
		tags = append(tags, tag)
	}
	if len(tags) == 0 {
		tags = []string{outboard.DefaultTag}
	}
	slices.Sort(tags)
	tags = slices.Compact(tags)
	if err := checkTags(tags); err != nil {
		return outboard.Template{}, b, err
	}
	if _, err := c.store.Snapshot(ctx, by.In(), name); outboard.KindOf(err) != outboard.NotFound {
		if err == nil {
			err = outboard.Errorf(outboard.Conflict, "there is a snapshot called %s", quote(name))
		}
		return outboard.Template{}, b, err
	}
	now := c.clock()
	m := outboard.Template{ID: outboard.NewTemplateID(), Name: name, Owner: by.Key, Secret: newSecret(), CreatedAt: now,
		UpdatedAt: now, Org: by.In()}
	b = outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), Owner: by.Key, Person: by.User, Host: host,
		State: outboard.TemplateWaiting, Tags: tags, CreatedAt: now, Org: by.In(),
		Spec: outboard.TemplateSpec{Limits: limits}}
	if err := c.record(ctx, by, "template.request", name, map[string]any{"build": b.ID, "tags": tags}); err != nil {
		return m, b, err
	}
	m, err := c.store.AddTemplateBuild(ctx, m, b)
	b.Template = m.ID
	return m, b, err
}

// templateSpec checks what is to be built and finds what it names.
func (c *Control) templateSpec(ctx context.Context, by outboard.Caller, m *outboard.Template, b *outboard.TemplateBuild,
	p TemplateBuildSpec) (outboard.TemplateSpec, error) {
	s := outboard.TemplateSpec{Image: p.Image, Isolation: p.Isolation, Limits: b.Spec.Limits, Hosts: p.Hosts,
		Start: p.Start, Ready: p.Ready, Warm: p.Warm}
	if p.Warm < 0 || p.Warm > fleet.MaxTemplateWarm {
		return s, invalid("warm must be 0 to %d sandboxes, not %d", fleet.MaxTemplateWarm, p.Warm)
	}
	if p.Limits != (outboard.SandboxLimits{}) {
		s.Limits = p.Limits
	}
	if err := s.Limits.Check(); err != nil {
		return s, invalid("limits.%w", err)
	}
	if c.able != nil {
		if err := c.able(outboard.EnvConfig{Isolation: s.Isolation, Limits: s.Limits}); err != nil {
			return s, err
		}
	}
	env := outboard.EnvConfig{Kind: "cloud", Networking: outboard.Networking{Mode: "limited", AllowedHosts: p.Hosts},
		Image: p.Image, Isolation: p.Isolation}
	err := checkCloud(&env)
	if err != nil {
		return s, err
	}
	if _, beyond := netrule.Narrow(c.boxNet, env.Networking); len(beyond) > 0 {
		return s, outboard.Errorf(outboard.Denied, "allowed_hosts: this server does not let builds of templates "+
			"reach %s", quote(strings.Join(beyond, ", "))).
			WithHint("a build reaches what sandboxes do: the operator says what that is, in egress.boxes of the " +
				"server's configuration")
	}
	if p.Login != nil && p.Image == "" {
		return s, invalid("a user and password for a registry need an image")
	}
	if p.From != "" && p.From != BaseTemplate {
		if p.Image != "" {
			return s, invalid("a template begins with an image or with another template, not with both")
		}
		_, base, err := c.templateFor(ctx, by, p.From)
		if outboard.KindOf(err) == outboard.NotFound {
			err = c.unlessSnapshot(ctx, by, p.From, err)
		}
		if err != nil {
			return s, err
		}
		s.From, s.Image, s.Login, s.Steps = base.ID, base.Spec.Image, base.Spec.Login, slices.Clone(base.Spec.Steps)
		s.Inherited = len(s.Steps)
		for i := base.Spec.Inherited; i < len(s.Steps); i++ {
			s.Steps[i].Hosts = base.Spec.Hosts
		}
		if s.Start == "" && s.Ready == "" {
			s.Start, s.Ready = base.Spec.Start, base.Spec.Ready
		}
	}
	salt, size := "", len(s.Start)+len(s.Ready)
	if p.Force {
		salt = string(b.ID)
	}
	for i, in := range p.Steps {
		if in.Force {
			salt = string(b.ID)
		}
		step, err := c.templateStep(ctx, by, m, in)
		if err != nil {
			return s, outboard.Errorf(outboard.KindOf(err), "steps[%d]: %w", i, err)
		}
		step.Salt = salt
		s.Steps = append(s.Steps, step)
		size += len(step.Command) + len(step.Source) + len(step.Target)
		for k, v := range step.Env {
			size += len(k) + len(v)
		}
	}
	if len(s.Steps) > maxTemplateSteps || size > maxTemplateText || len(s.Start) > maxCommand ||
		len(s.Ready) > maxCommand {
		return s, invalid("a template has at most %d steps, those it begins with included, and %d bytes of text",
			maxTemplateSteps, maxTemplateText)
	}
	if strings.ContainsRune(s.Start+s.Ready, 0) {
		return s, invalid("a command must not contain the NUL character")
	}
	if p.Image != "" {
		s.Login, err = c.registryLogin(ctx, by, p.Image, p.Login)
	}
	return s, err
}

func (c *Control) templateStep(ctx context.Context, by outboard.Caller, m *outboard.Template,
	in TemplateStep) (outboard.TemplateStep, error) {
	s := in.TemplateStep
	for what, text := range map[string]string{"command": s.Command, "source": s.Source, "target": s.Target} {
		if err := length(what, text, 0, maxCommand); err != nil {
			return s, err
		}
	}
	if s.User != "" && !userOrGroup.MatchString(s.User) {
		return s, invalid("%s is no name of a user", quote(s.User))
	}
	switch s.Kind {
	case outboard.StepRun:
		return s, length("command", s.Command, 1, maxCommand)
	case outboard.StepEnv:
		for k, v := range s.Env {
			if err := length("env "+quote(k), k+v, 1, maxBoxText); err != nil {
				return s, err
			}
		}
		return s, nil
	case outboard.StepWorkdir:
		return s, length("workdir", s.Target, 1, 4096)
	case outboard.StepUser:
		if s.User, _, _ = strings.Cut(s.User, ":"); s.User == "" {
			return s, invalid("a user step names a user")
		}
		return s, nil
	case outboard.StepCopy:
		if path.IsAbs(s.Source) || slices.Contains(strings.Split(s.Source, "/"), "..") {
			return s, invalid("COPY takes what was uploaded: %s leaves it", quote(s.Source))
		}
		if s.Mode != "" && !fileMode.MatchString(s.Mode) {
			return s, invalid("%s is no mode of a file: write it as 0644", quote(s.Mode))
		}
		var err error
		s.Files, err = c.templateArchive(ctx, by, m, in)
		return s, err
	}
	return s, invalid("a step is run, copy, env, workdir or user, not %s", quote(string(s.Kind)))
}

// templateArchive finds what a COPY step copies from. A template makes the content of a file readable, so it
// takes the right to files.
func (c *Control) templateArchive(ctx context.Context, by outboard.Caller, m *outboard.Template,
	in TemplateStep) (outboard.BlobRef, error) {
	if in.File != "" {
		if err := requireDeveloper(by, scopeFiles); err != nil {
			return outboard.BlobRef{}, err
		}
		f, err := c.File(ctx, by, in.File)
		return f.Blob, err
	}
	ref, err := c.store.TemplateFile(ctx, m.ID, in.Upload)
	if outboard.KindOf(err) == outboard.NotFound {
		err = invalid("nothing was uploaded as %s", quote(in.Upload))
	}
	return ref, err
}

// Templates returns all templates, newest first.
func (c *Control) Templates(ctx context.Context, by outboard.Caller) ([]outboard.Template, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	return c.store.Templates(ctx, by.In())
}

// Template returns one by its id or name. A tag behind that is one it has. BaseTemplate is none of these: nobody
// built it.
func (c *Control) Template(ctx context.Context, by outboard.Caller, ref string) (outboard.Template, error) {
	if err := requireReader(by); err != nil {
		return outboard.Template{}, err
	}
	name, tag, tagged := strings.Cut(ref, ":")
	if name == BaseTemplate {
		if tagged && tag != outboard.DefaultTag {
			return outboard.Template{}, onlyDefault("template", name, tag)
		}
		return outboard.Template{}, outboard.Errorf(outboard.NotFound,
			"template %s is the server's own: it has no builds", name)
	}
	if len(name) > maxTemplateName || strings.ContainsRune(ref, 0) {
		return outboard.Template{}, notFound("template", name)
	}
	m, err := c.store.Template(ctx, by.In(), name)
	if err := wrapLookup("template", name, err); err != nil || !tagged {
		return m, err
	}
	_, err = tagOf(&m, tag)
	return m, err
}

// TemplateBuild returns one build of a template.
func (c *Control) TemplateBuild(ctx context.Context, by outboard.Caller, ref string,
	id outboard.TemplateBuildID) (outboard.Template, outboard.TemplateBuild, error) {
	m, err := c.Template(ctx, by, ref)
	if err != nil {
		return m, outboard.TemplateBuild{}, err
	}
	if !looksLikeID.MatchString(string(id)) {
		return m, outboard.TemplateBuild{}, notFound("build", string(id))
	}
	b, err := c.store.TemplateBuild(ctx, id)
	if err == nil && b.Template != m.ID {
		return m, outboard.TemplateBuild{}, notFound("build", string(id))
	}
	return m, b, ownedBy(by, b.Org, "build", string(id), err)
}

// TemplateBuilds returns a template and its newest builds, newest first.
func (c *Control) TemplateBuilds(ctx context.Context, by outboard.Caller,
	ref string) (outboard.Template, []outboard.TemplateBuild, error) {
	m, err := c.Template(ctx, by, ref)
	if err != nil {
		return m, nil, err
	}
	list, err := c.store.TemplateBuilds(ctx, m.ID, maxListedBuilds)
	return m, list, err
}

// TemplateLog returns a build, and lines of its log from a number on. The build was read first: of one that is
// over, all lines are there.
func (c *Control) TemplateLog(ctx context.Context, by outboard.Caller, ref string, id outboard.TemplateBuildID,
	from int) (outboard.Template, outboard.TemplateBuild, []outboard.TemplateLine, error) {
	m, b, err := c.TemplateBuild(ctx, by, ref, id)
	if err != nil {
		return m, b, nil, err
	}
	lines, err := c.store.TemplateLog(ctx, id, max(0, from), maxLogPage)
	return m, b, lines, err
}

// templateFor returns what NAME[:TAG] or an id means: a template and a build of it that is ready.
func (c *Control) templateFor(ctx context.Context, by outboard.Caller,
	ref string) (outboard.Template, outboard.TemplateBuild, error) {
	name, tag := cutTag(ref)
	m, err := c.Template(ctx, by, name+":"+tag)
	if err != nil {
		return m, outboard.TemplateBuild{}, err
	}
	t := m.Tags[tag]
	b, err := c.store.TemplateBuild(ctx, t.Build)
	return m, b, err
}

// pinTemplate makes an environment's template the build that it means now.
func (c *Control) pinTemplate(ctx context.Context, by outboard.Caller, cfg *outboard.EnvConfig) error {
	cfg.Build = ""
	if cfg.Template == "" || cfg.Template == BaseTemplate {
		return nil
	}
	_, b, err := c.templateFor(ctx, by, cfg.Template)
	if err != nil {
		return err
	}
	cfg.Build = b.ID
	return nil
}

// hasTemplate refuses an environment that names a template which is not there. What it means is looked up again
// by each session.
func (c *Control) hasTemplate(ctx context.Context, by outboard.Caller, cfg outboard.EnvConfig) error {
	if err := c.pinTemplate(ctx, by, &cfg); err != nil {
		return invalid("config.outboard.template: %w", err)
	}
	return nil
}

// TagTemplate makes tags mean the build that target, NAME:TAG, means.
func (c *Control) TagTemplate(ctx context.Context, by outboard.Caller, target string,
	tags []string) (outboard.TemplateBuild, error) {
	if err := requireDeveloper(by, scopeSandboxes); err != nil {
		return outboard.TemplateBuild{}, err
	}
	if len(tags) == 0 {
		return outboard.TemplateBuild{}, invalid("tags must not be empty")
	}
	if err := checkTags(tags); err != nil {
		return outboard.TemplateBuild{}, err
	}
	if name, _ := cutTag(target); name == BaseTemplate {
		return outboard.TemplateBuild{}, changeable(name)
	}
	m, b, err := c.templateFor(ctx, by, target)
	if err != nil {
		return b, err
	}
	if err := c.record(ctx, by, "template.tag", string(m.ID), map[string]any{"build": b.ID, "tags": tags}); err != nil {
		return b, err
	}
	_, err = c.store.ChangeTemplate(ctx, m.ID, func(m *outboard.Template) error {
		m.UpdatedAt = c.clock()
		for _, t := range tags {
			m.Tags[t] = outboard.TemplateTag{Build: b.ID, At: m.UpdatedAt}
		}
		if len(m.Tags) > maxTemplateTags {
			return outboard.Errorf(outboard.Exhausted, "a template has at most %d tags", maxTemplateTags)
		}
		return nil
	})
	return b, wrapLookup("template", m.Name, err)
}

// UntagTemplate takes tags away. What is none is none afterwards.
func (c *Control) UntagTemplate(ctx context.Context, by outboard.Caller, ref string, tags []string) error {
	if err := requireDeveloper(by, scopeSandboxes); err != nil {
		return err
	}
	name, _ := cutTag(ref)
	if err := changeable(name); err != nil {
		return err
	}
	m, err := c.Template(ctx, by, name)
	if err != nil {
		return err
	}
	if err := c.record(ctx, by, "template.untag", string(m.ID), map[string]any{"tags": tags}); err != nil {
		return err
	}
	_, err = c.store.ChangeTemplate(ctx, m.ID, func(m *outboard.Template) error {
		m.UpdatedAt = c.clock()
		for _, t := range tags {
			delete(m.Tags, t)
		}
		return nil
	})
	return wrapLookup("template", name, err)
}

// DeleteTemplate removes a template: builds of it that go on end, and nothing begins with it any more. What
// began with it goes on.
func (c *Control) DeleteTemplate(ctx context.Context, by outboard.Caller, ref string) error {
	if err := requireDeveloper(by, scopeSandboxes); err != nil {
		return err
	}
	name, tag := cutTag(ref)
	if err := changeable(name); err != nil {
		return err
	}
	m, err := c.Template(ctx, by, ref)
	if err != nil {
		return err
	}
	if tag != outboard.DefaultTag {
		return invalid("%s names a tag, and a template is removed with all it has: name it without the tag, or take "+
			"the tag away", quote(ref))
	}
	if err := c.record(ctx, by, "template.delete", string(m.ID), nil); err != nil {
		return err
	}
	if _, err := c.store.ChangeTemplate(ctx, m.ID,
		func(m *outboard.Template) error { m.DeletedAt = c.clock(); return nil }); err != nil {
		return wrapLookup("template", ref, err)
	}
	builds, err := c.store.TemplateBuilds(ctx, m.ID, store.MaxTemplateBuilds*2)
	for _, b := range builds {
		if b.State == outboard.TemplateBuilding && c.fleet != nil {
			c.fleet.CancelBuild(b.ID, outboard.Errorf(outboard.Canceled, "the template was removed"))
		}
	}
	return err
}

// HasTemplateUpload reports whether something was uploaded for a template under a name.
func (c *Control) HasTemplateUpload(ctx context.Context, by outboard.Caller, ref,
	hash string) (outboard.Template, bool, error) {
	if err := requireDeveloper(by, scopeSandboxes); err != nil {
		return outboard.Template{}, false, err
	}
	if err := changeable(ref); err != nil {
		return outboard.Template{}, false, err
	}
	m, err := c.Template(ctx, by, ref)
	if err != nil {
		return m, false, err
	}
	if !uploadHash.MatchString(hash) {
		return m, false, invalid("an upload is called by letters, digits, - and _, not %s", quote(hash))
	}
	_, err = c.store.TemplateFile(ctx, m.ID, hash)
	if outboard.KindOf(err) == outboard.NotFound {
		return m, false, nil
	}
	return m, err == nil, err
}

// PutTemplateUpload keeps an archive for COPY steps of a template under a name of its client's: a tar, which may
// be compressed with gzip.
func (c *Control) PutTemplateUpload(ctx context.Context, by outboard.Caller, ref, hash string, r io.Reader) error {
	m, _, err := c.HasTemplateUpload(ctx, by, ref, hash)
	if err != nil {
		return err
	}
	if err := c.record(ctx, by, "template.upload", string(m.ID), map[string]any{"hash": hash}); err != nil {
		return err
	}
	return c.keepUpload(ctx, m.ID, hash, r)
}

func (c *Control) keepUpload(ctx context.Context, id outboard.TemplateID, hash string, r io.Reader) error {
	blob, err := c.blob.Put(ctx, r, MaxTemplateUpload)
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "storing the upload: %w", err)
	}
	return c.store.PutTemplateFile(ctx, id, hash, blob, c.clock())
}

// UploadLink returns when a link for an upload ends, and what proves that it was given out.
func (c *Control) UploadLink(m *outboard.Template, hash string) (expires int64, signature string) {
	expires = c.clock().Add(uploadLinkTTL).Unix()
	return expires, signUpload(m, hash, expires)
}

func signUpload(m *outboard.Template, hash string, expires int64) string {
	h := hmac.New(sha256.New, []byte(m.Secret))
	fmt.Fprintf(h, "%s\n%s\n%d", m.ID, hash, expires)
	return hex.EncodeToString(h.Sum(nil))
}

// PutSignedUpload is PutTemplateUpload for who has a link instead of a key.
func (c *Control) PutSignedUpload(ctx context.Context, id outboard.TemplateID, hash string, expires int64,
	signature string, r io.Reader) error {
	bad := outboard.Errorf(outboard.Unauthenticated, "the link for this upload is not good, or no more")
	if !id.Valid() || !uploadHash.MatchString(hash) {
		return bad
	}
	m, err := c.store.TemplateByID(ctx, id)
	if outboard.KindOf(err) == outboard.NotFound {
		return bad
	}
	if err != nil {
		return err
	}
	if !hmac.Equal([]byte(signature), []byte(signUpload(&m, hash, expires))) || c.clock().Unix() > expires {
		return bad
	}
	err = c.store.Audit(ctx, outboard.AuditRecord{At: c.clock(), Org: string(m.Org), Actor: string(m.ID),
		Action:   "template.upload",
		Resource: string(m.ID), Decision: outboard.Allowed, Rule: "a signed link"})
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "writing the audit: %w", err)
	}
	return c.keepUpload(ctx, id, hash, r)
}

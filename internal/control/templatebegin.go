package control

import (
	"context"
	"strings"

	"github.com/outboard-dev/outboard"
)

// BuildTemplate makes a build and has it begin: RequestTemplateBuild and StartTemplateBuild in one. What is
// refused leaves no template behind.
func (c *Control) BuildTemplate(ctx context.Context, by outboard.Caller, ref string, tags []string,
	p TemplateBuildSpec) (outboard.Template, outboard.TemplateBuild, error) {
	if err := c.boxes(by); err != nil {
		return outboard.Template{}, outboard.TemplateBuild{}, err
	}
	if err := c.alive(ctx, outboard.KillSubject{Owner: by.Key, Person: by.User}); err != nil {
		return outboard.Template{}, outboard.TemplateBuild{}, err
	}
	if _, err := c.templateSpec(ctx, by, new(outboard.Template), new(outboard.TemplateBuild), p); err != nil {
		return outboard.Template{}, outboard.TemplateBuild{}, err
	}
	if err := c.fleet.CanBuild(); err != nil {
		return outboard.Template{}, outboard.TemplateBuild{}, err
	}
	p.Login = nil // it is the organization's credential from here on
	m, b, err := c.requestBuild(ctx, by, ref, tags, p.Limits, c.fleet.Host())
	if err != nil {
		return m, b, err
	}
	b, err = c.StartTemplateBuild(ctx, by, string(m.ID), b.ID, p)
	return m, b, err
}

// StartTemplateBuild says what a build that waits is to build, and has it begin. A build that is refused has
// failed, with the reason.
func (c *Control) StartTemplateBuild(ctx context.Context, by outboard.Caller, ref string, id outboard.TemplateBuildID,
	p TemplateBuildSpec) (outboard.TemplateBuild, error) {
	if err := c.boxes(by); err != nil {
		return outboard.TemplateBuild{}, err
	}
	m, b, err := c.TemplateBuild(ctx, by, ref, id)
	if err != nil {
		return b, err
	}
	if b, err = c.startBuild(ctx, by, &m, b, p); err != nil {
		c.refuseBuild(ctx, id, err)
	}
	return b, err
}

// RefuseTemplateBuild is for who cannot read what a build that waits is to build: it has failed.
func (c *Control) RefuseTemplateBuild(ctx context.Context, by outboard.Caller, ref string, id outboard.TemplateBuildID,
	why error) error {
	if err := c.boxes(by); err != nil {
		return err
	}
	if _, _, err := c.TemplateBuild(ctx, by, ref, id); err != nil {
		return err
	}
	c.refuseBuild(ctx, id, why)
	return nil
}

// refuseBuild says of a build that waits that it has failed: nobody would tell it anything else. A build that
// was begun is none of this.
func (c *Control) refuseBuild(ctx context.Context, id outboard.TemplateBuildID, why error) {
	text := outboard.PublicOf(why)
	switch outboard.KindOf(why) {
	case outboard.Conflict, outboard.Canceled: // it was begun, or who asks has gone: it says nothing of the build
		return
	case outboard.Internal:
		text = "internal error; the server's log says what it was"
	}
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "?")
	_, err := c.store.ChangeTemplateBuild(context.WithoutCancel(ctx), id, func(b *outboard.TemplateBuild) error {
		if b.State == outboard.TemplateWaiting {
			b.State, b.Error, b.EndedAt = outboard.TemplateFailed, text, c.clock()
		}
		return nil
	})
	if err != nil {
		c.log.Warn("a build that was refused waits on", "build", id, "err", err)
	}
}

func (c *Control) startBuild(ctx context.Context, by outboard.Caller, m *outboard.Template, b outboard.TemplateBuild,
	p TemplateBuildSpec) (outboard.TemplateBuild, error) {
	id := b.ID
	if b.State != outboard.TemplateWaiting {
		return b, outboard.Errorf(outboard.Conflict, "build %s does not wait to be begun: its state is %s", id, b.State)
	}
	if err := c.alive(ctx, outboard.KillSubject{Owner: by.Key, Person: by.User}); err != nil {
		return b, err
	}
	s, err := c.templateSpec(ctx, by, m, &b, p)
	if err != nil {
		return b, err
	}
	if err := c.record(ctx, by, "template.build", string(m.ID), map[string]any{"build": id, "image": s.Image,
		"steps": len(s.Steps), "allowed_hosts": s.Hosts}); err != nil {
		return b, err
	}
	return c.fleet.BuildTemplate(ctx, id,
		func(b *outboard.TemplateBuild) error { b.Spec, b.Owner, b.Person = s, by.Key, by.User; return nil })
}

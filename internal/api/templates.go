package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Templates: what sandboxes begin with, prepared once. Outboard's own resource, in the wire's style. The E2B API
// has the same ones. A template is named in paths by its id or its name.

type templateIn struct {
	Name      string            `json:"name" need:"yes"` // NAME or NAME:TAG
	Tags      []string          `json:"tags"`
	Image     string            `json:"image"`
	Registry  json.RawMessage   `json:"registry"` // who to be where the image is pulled from
	From      string            `json:"from"`     // another template
	Isolation string            `json:"isolation"`
	Limits    json.RawMessage   `json:"limits"`
	Hosts     []string          `json:"allowed_hosts"`
	Steps     []json.RawMessage `json:"steps"`
	Start     string            `json:"start_command"`
	Ready     string            `json:"ready_command"`
	NoCache   bool              `json:"no_cache"`
	Warm      int               `json:"warm"`
}

type templateStepIn struct {
	Type    string            `json:"type" need:"yes"` // run, copy, env, workdir, user
	Command string            `json:"command"`         // run
	User    string            `json:"user"`            // run, copy, user
	File    string            `json:"file_id"`         // copy: a tar
	Source  string            `json:"source"`          // copy
	Target  string            `json:"target"`          // copy
	Mode    string            `json:"mode"`            // copy
	Path    string            `json:"path"`            // workdir
	Env     map[string]string `json:"env"`             // env
}

func (in templateStepIn) step() control.TemplateStep {
	s := control.TemplateStep{File: outboard.FileID(in.File)}
	s.Kind, s.Command, s.User, s.Source, s.Target, s.Mode, s.Env = outboard.TemplateStepKind(in.Type), in.Command, in.User, in.Source, in.Target, in.Mode, in.Env
	if s.Kind == outboard.StepWorkdir {
		s.Target = in.Path
	}
	return s
}

func (in templateIn) spec() (control.TemplateBuildSpec, error) {
	p := control.TemplateBuildSpec{Image: in.Image, From: in.From, Isolation: in.Isolation, Hosts: in.Hosts,
		Start: in.Start, Ready: in.Ready, Force: in.NoCache, Warm: in.Warm}
	if len(in.Limits) > 0 && string(in.Limits) != "null" {
		var l limitsIn
		if err := object("limits", in.Limits, &l); err != nil {
			return p, err
		}
		p.Limits = outboard.SandboxLimits{MemoryBytes: l.MemoryBytes, CPUs: l.CPUs, Pids: l.Pids,
			DiskBytes: l.DiskBytes}
	}
	if len(in.Registry) > 0 && string(in.Registry) != "null" {
		var err error
		if p.Login, err = decodeLogin("registry", in.Registry); err != nil {
			return p, err
		}
	}
	for i, raw := range in.Steps {
		var step templateStepIn
		if err := object(fmt.Sprintf("steps[%d]", i), raw, &step); err != nil {
			return p, err
		}
		p.Steps = append(p.Steps, step.step())
	}
	return p, nil
}

// decodeLogin reads who to be at a registry: a user with a password, or with the type aws a key.
func decodeLogin(path string, raw json.RawMessage) (*control.RegistryLogin, error) {
	var kind struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(raw, &kind) // what is no object is refused below
	switch kind.Type {
	case "", "password":
		var in struct {
			Type     string `json:"type"`
			User     string `json:"username" need:"yes"`
			Password string `json:"password" need:"yes"`
		}
		err := object(path, raw, &in)
		return &control.RegistryLogin{User: in.User, Password: outboard.NewSecret(in.Password)}, err
	case "aws":
		var in struct {
			Type   string `json:"type"`
			ID     string `json:"access_key_id" need:"yes"`
			Key    string `json:"secret_access_key" need:"yes"`
			Token  string `json:"session_token"`
			Region string `json:"region" need:"yes"`
		}
		err := object(path, raw, &in)
		return &control.RegistryLogin{AWS: &control.RegistryKey{Region: in.Region, ID: outboard.NewSecret(in.ID),
			Key: outboard.NewSecret(in.Key), SessionToken: outboard.NewSecret(in.Token)}}, err
	}
	return nil, bad("%s.type: must be password or aws, not %q", path, clip(kind.Type))
}

// buildTemplate begins a build. It goes on without the client.
func (s *server) buildTemplate(r *request) (any, error) {
	var in templateIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p, err := in.spec()
	if err != nil {
		return nil, err
	}
	m, b, err := s.ctl.BuildTemplate(r.Context(), r.by, in.Name, in.Tags, p)
	if err != nil {
		return nil, err
	}
	return showBuild(&m, b), nil
}

type templateTagOut struct {
	BuildID string `json:"build_id"`
	At      string `json:"tagged_at"`
}

type templateOut struct {
	Type      string                    `json:"type"` // "template"
	ID        string                    `json:"id"`
	Name      string                    `json:"name"`
	Tags      map[string]templateTagOut `json:"tags"` // of builds that are ready
	CreatedAt string                    `json:"created_at"`
	UpdatedAt string                    `json:"updated_at"`
}

func showTemplate(m outboard.Template) templateOut {
	out := templateOut{Type: "template", ID: string(m.ID), Name: m.Name, Tags: map[string]templateTagOut{},
		CreatedAt: stamp(m.CreatedAt), UpdatedAt: stamp(m.UpdatedAt)}
	for tag, t := range m.Tags {
		out.Tags[tag] = templateTagOut{string(t.Build), stamp(t.At)}
	}
	return out
}

func templateRow(m outboard.Template) (string, time.Time) { return string(m.ID), m.CreatedAt }

func (s *server) listTemplates(r *request) (any, error) {
	q, err := r.rows("templates", 100, 1000)
	if err != nil {
		return nil, err
	}
	all, err := s.ctl.Templates(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	return pageOf(q, cut(q, all, templateRow), templateRow, showTemplate), nil
}

func (s *server) getTemplate(r *request) (any, error) {
	m, err := s.ctl.Template(r.Context(), r.by, r.PathValue("template"))
	if err != nil {
		return nil, err
	}
	return showTemplate(m), nil
}

func (s *server) deleteTemplate(r *request) (any, error) {
	if err := s.ctl.DeleteTemplate(r.Context(), r.by, r.PathValue("template")); err != nil {
		return nil, err
	}
	return deletedOut{r.PathValue("template"), "template_deleted"}, nil
}

type templateErrorOut struct {
	Message string `json:"message"`
	Step    *int   `json:"step"` // that failed, from 1; null = none of them
}

type templateBuildOut struct {
	Type       string            `json:"type"` // "template_build"
	ID         string            `json:"id"`
	TemplateID string            `json:"template_id"`
	Name       string            `json:"name"`
	State      string            `json:"state"` // waiting, building, ready, error
	Tags       []string          `json:"tags"`  // that mean it once it is ready
	Image      *string           `json:"image"` // null = the host's programs
	Steps      int               `json:"steps"` // those of the template that it begins with included
	Layers     *int              `json:"layers"`
	Error      *templateErrorOut `json:"error"`
	CreatedAt  string            `json:"created_at"`
	StartedAt  *string           `json:"started_at"`
	EndedAt    *string           `json:"ended_at"`
}

func showBuild(m *outboard.Template, b outboard.TemplateBuild) templateBuildOut {
	out := templateBuildOut{Type: "template_build", ID: string(b.ID), TemplateID: string(m.ID), Name: m.Name,
		State: string(b.State), Tags: b.Tags,
		Image: textOrNull(b.Spec.Image), Steps: len(b.Spec.Steps), CreatedAt: stamp(b.CreatedAt), StartedAt: stampOrNull(b.StartedAt), EndedAt: stampOrNull(b.EndedAt)}
	switch b.State {
	case outboard.TemplateReady:
		out.Layers = new(len(b.Result.Layers))
	case outboard.TemplateFailed:
		out.Error = &templateErrorOut{Message: b.Error}
		if b.ErrorStep > 0 {
			out.Error.Step = new(b.ErrorStep)
		}
	}
	return out
}

func (s *server) listTemplateBuilds(r *request) (any, error) {
	q, err := r.rows("template_builds", 100, 1000)
	if err != nil {
		return nil, err
	}
	m, all, err := s.ctl.TemplateBuilds(r.Context(), r.by, r.PathValue("template"))
	if err != nil {
		return nil, err
	}
	row := func(b outboard.TemplateBuild) (string, time.Time) { return string(b.ID), b.CreatedAt }
	return pageOf(q, cut(q, all, row), row,
		func(b outboard.TemplateBuild) templateBuildOut { return showBuild(&m, b) }), nil
}

func buildID(r *request) outboard.TemplateBuildID {
	return outboard.TemplateBuildID(r.PathValue("build"))
}

func (s *server) getTemplateBuild(r *request) (any, error) {
	m, b, err := s.ctl.TemplateBuild(r.Context(), r.by, r.PathValue("template"), buildID(r))
	if err != nil {
		return nil, err
	}
	return showBuild(&m, b), nil
}

type templateLineOut struct {
	At      string `json:"at"`
	Level   string `json:"level"` // debug, info, warn, error
	Step    *int   `json:"step"`  // from 1; null = none of them
	Message string `json:"message"`
}

type templateLogOut struct {
	Data     []templateLineOut `json:"data"`
	NextFrom int               `json:"next_from"` // ask again with it for what comes
	// of the build, before the lines were read: once it is over, an empty page is the end
	State string `json:"state"`
}

// templateLog returns lines of a build's log from a number on.
func (s *server) templateLog(r *request) (any, error) {
	from := 0
	if text := r.query.Get("from"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, bad("from: must be the number of a line, from 0, not %q", clip(text))
		}
		from = n
	}
	_, b, lines, err := s.ctl.TemplateLog(r.Context(), r.by, r.PathValue("template"), buildID(r), from)
	if err != nil {
		return nil, err
	}
	out := templateLogOut{Data: make([]templateLineOut, len(lines)), NextFrom: from + len(lines),
		State: string(b.State)}
	for i, l := range lines {
		out.Data[i] = templateLineOut{At: stamp(l.At), Level: l.Level, Message: l.Message}
		if l.Step > 0 {
			out.Data[i].Step = new(l.Step)
		}
	}
	return out, nil
}

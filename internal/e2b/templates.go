package e2b

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Templates as the SDKs' Template.build makes them: a build is asked for, files are uploaded by links, the steps
// are sent, and the status is asked for until it is the end.

type buildRequestIn struct {
	Name     string   `json:"name"`
	Alias    string   `json:"alias"` // as older clients call it
	Tags     []string `json:"tags"`
	CPUCount *int64   `json:"cpuCount"`
	MemoryMB *int64   `json:"memoryMB"`
}

// What the sandboxes of a template may have: at least what E2B's own description of its API says, and no more
// than any host has.
const (
	minCPUs, maxCPUs         = 1, 1024
	minMemoryMB, maxMemoryMB = 128, 8 << 20
)

// limits checks what is asked for here, where it has the names that the client gave it.
func (in *buildRequestIn) limits() (l outboard.SandboxLimits, err error) {
	if n := in.CPUCount; n != nil {
		if *n < minCPUs || *n > maxCPUs {
			return l, outboard.Errorf(outboard.Invalid, "cpuCount must be %d to %d, not %d", minCPUs, maxCPUs, *n)
		}
		l.CPUs = float64(*n)
	}
	if n := in.MemoryMB; n != nil {
		if *n < minMemoryMB || *n > maxMemoryMB {
			return l, outboard.Errorf(outboard.Invalid, "memoryMB must be %d to %d, not %d", minMemoryMB, maxMemoryMB,
				*n)
		}
		l.MemoryBytes = *n << 20
	}
	return l, nil
}

type buildRequestOut struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Public     bool     `json:"public"`
	Names      []string `json:"names"`
	Tags       []string `json:"tags"`
	Aliases    []string `json:"aliases"`
}

func (s *Server) requestBuild(r *request) (int, any, error) {
	var in buildRequestIn
	if err := decode(r.w, r.Request, &in); err != nil {
		return 0, nil, err
	}
	limits, err := in.limits()
	if err != nil {
		return 0, nil, err
	}
	name, tag, tagged, err := ownName(cmp.Or(in.Name, in.Alias))
	if err != nil {
		return 0, nil, err
	}
	if tagged {
		in.Tags = append(in.Tags, tag)
	}
	m, b, err := s.ctl.RequestTemplateBuild(r.Context(), r.by, name, cleanTags(in.Tags), limits)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusAccepted, buildRequestOut{TemplateID: string(m.ID), BuildID: string(b.ID),
		Names: []string{namespace + m.Name}, Tags: b.Tags,
		Aliases: []string{m.Name}}, nil
}

type buildIn struct {
	FromImage    string      `json:"fromImage"`
	FromTemplate string      `json:"fromTemplate"`
	Registry     *registryIn `json:"fromImageRegistry"`
	Force        bool        `json:"force"`
	Steps        []stepIn    `json:"steps"`
	Start        string      `json:"startCmd"`
	Ready        string      `json:"readyCmd"`
}

// registryIn is who to be at the registry of an image, as the SDKs say it.
type registryIn struct {
	Type           string `json:"type"`
	Username       string `json:"username"`
	Password       string `json:"password"`
	ServiceAccount string `json:"serviceAccountJson"`
	AWSKeyID       string `json:"awsAccessKeyId"`
	AWSKey         string `json:"awsSecretAccessKey"`
	AWSRegion      string `json:"awsRegion"`
}

func (in *registryIn) login() (*control.RegistryLogin, error) {
	if in == nil || in.Type == "" {
		return nil, nil
	}
	switch in.Type {
	case "registry":
		return &control.RegistryLogin{User: in.Username, Password: outboard.NewSecret(in.Password)}, nil
	case "gcp": // a service account's key is a password there, on one line
		var b bytes.Buffer
		if err := json.Compact(&b, []byte(in.ServiceAccount)); err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "fromImageRegistry.serviceAccountJson is no JSON")
		}
		return &control.RegistryLogin{User: "_json_key", Password: outboard.NewSecret(b.String())}, nil
	case "aws":
		return &control.RegistryLogin{AWS: &control.RegistryKey{Region: in.AWSRegion,
			ID: outboard.NewSecret(in.AWSKeyID), Key: outboard.NewSecret(in.AWSKey)}}, nil
	}
	return nil, outboard.Errorf(outboard.Invalid, "fromImageRegistry.type is registry, aws or gcp")
}

type stepIn struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"`
	Force     bool     `json:"force"`
}

// step reads one step. Arguments that are left out are empty.
func (in stepIn) step() (control.TemplateStep, error) {
	args := append(slices.Clone(in.Args), "", "", "", "")
	s := control.TemplateStep{Force: in.Force, Upload: in.FilesHash}
	switch in.Type {
	case "RUN":
		s.Kind, s.Command, s.User = outboard.StepRun, args[0], args[1]
	case "COPY":
		s.Kind, s.Source, s.Target, s.User, s.Mode = outboard.StepCopy, args[0], args[1], args[2], args[3]
	case "WORKDIR":
		s.Kind, s.Target = outboard.StepWorkdir, args[0]
	case "USER":
		s.Kind, s.User = outboard.StepUser, args[0]
	case "ENV":
		s.Kind, s.Env = outboard.StepEnv, map[string]string{}
		if len(in.Args)%2 != 0 {
			return s, outboard.Errorf(outboard.Invalid, "an ENV step has names and values in turn")
		}
		for pair := range slices.Chunk(in.Args, 2) {
			s.Env[pair[0]] = pair[1]
		}
	default:
		return s, outboard.Errorf(outboard.Invalid, "a step of type %q is none of RUN, COPY, ENV, WORKDIR and USER",
			in.Type)
	}
	if len(s.Mode) == 4 { // as the SDKs pad it
		s.Mode = strings.TrimPrefix(s.Mode, "0")
	}
	return s, nil
}

// buildID is the build that the path names.
func (r *request) buildID() outboard.TemplateBuildID {
	return outboard.TemplateBuildID(clean(r.parts[1]))
}

// startBuild has a build begin. One that is refused has failed: nobody who asks for its status is to wait.
func (s *Server) startBuild(r *request) (int, any, error) {
	ref := templateRef(r.parts[0])
	p, err := s.readBuild(r)
	if err != nil {
		return 0, nil, cmp.Or(s.ctl.RefuseTemplateBuild(r.Context(), r.by, ref, r.buildID(), err), err)
	}
	_, err = s.ctl.StartTemplateBuild(r.Context(), r.by, ref, r.buildID(), p)
	return http.StatusAccepted, struct{}{}, err
}

func (s *Server) readBuild(r *request) (p control.TemplateBuildSpec, err error) {
	var in buildIn
	if err := decode(r.w, r.Request, &in); err != nil {
		return p, err
	}
	// as E2B has it: what a template begins with is too much to be guessed
	if in.FromImage == "" && clean(in.FromTemplate) == "" {
		return p, outboard.Errorf(outboard.Invalid, "a build begins with fromImage or fromTemplate; fromTemplate %q "+
			"is this server's own programs", control.BaseTemplate)
	}
	login, err := in.Registry.login()
	if err != nil {
		return p, err
	}
	p = control.TemplateBuildSpec{Image: in.FromImage, Login: login, From: templateRef(in.FromTemplate),
		Start: in.Start, Ready: in.Ready, Force: in.Force}
	for i, one := range in.Steps {
		step, err := one.step()
		if err != nil {
			return p, outboard.Errorf(outboard.KindOf(err), "steps[%d]: %w", i, err)
		}
		p.Steps = append(p.Steps, step)
	}
	return p, nil
}

type buildLineOut struct {
	Timestamp time.Time `json:"timestamp"`
	Message   string    `json:"message"`
	Level     string    `json:"level"`
	Step      string    `json:"step,omitempty"`
}

func showLines(lines []outboard.TemplateLine) []buildLineOut {
	out := make([]buildLineOut, len(lines))
	for i, l := range lines {
		out[i] = buildLineOut{Timestamp: l.At, Message: l.Message, Level: l.Level}
		if l.Step > 0 {
			out[i].Step = strconv.Itoa(l.Step)
		}
	}
	return out
}

type reasonOut struct {
	Message    string         `json:"message"`
	Step       string         `json:"step,omitempty"`
	LogEntries []buildLineOut `json:"logEntries"`
}

// whyFailed is why a build failed, in E2B's own words where programs look for them.
func whyFailed(b *outboard.TemplateBuild) string {
	const nobody = "invalid username: "
	_, who, ok := strings.Cut(b.Error, ": "+nobody)
	if n := b.ErrorStep; ok && n > 0 && n <= len(b.Spec.Steps) && b.Spec.Steps[n-1].Kind == outboard.StepRun {
		return fmt.Sprintf("failed to run command '%s': command failed: unauthenticated: %s%s",
			b.Spec.Steps[n-1].Command, nobody, who)
	}
	return b.Error
}

// number reads a parameter that counts.
func (r *request) number(name string) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, outboard.Errorf(outboard.Invalid, "%s must be a number from 0", name)
	}
	return n, nil
}

func (s *Server) buildStatus(r *request) (int, any, error) {
	from, err := r.number("logsOffset")
	if err != nil {
		return 0, nil, err
	}
	m, b, lines, err := s.ctl.TemplateLog(r.Context(), r.by, templateRef(r.parts[0]), r.buildID(), from)
	if err != nil {
		return 0, nil, err
	}
	plain := make([]string, len(lines))
	for i, l := range lines {
		plain[i] = l.Message
	}
	out := map[string]any{"templateID": m.ID, "buildID": b.ID, "status": b.State, "logEntries": showLines(lines),
		"logs": plain}
	if b.State == outboard.TemplateFailed {
		reason := reasonOut{Message: whyFailed(&b), LogEntries: []buildLineOut{}}
		if b.ErrorStep > 0 {
			reason.Step = strconv.Itoa(max(0, b.ErrorStep-b.Spec.Inherited))
		}
		out["reason"] = reason
	}
	return http.StatusOK, out, nil
}

func (s *Server) buildLogs(r *request) (int, any, error) {
	_, _, lines, err := s.ctl.TemplateLog(r.Context(), r.by, templateRef(r.parts[0]), r.buildID(), 0)
	return http.StatusOK, map[string]any{"logs": showLines(lines)}, err
}

type tagsIn struct {
	Target string   `json:"target"`
	Name   string   `json:"name"`
	Tags   []string `json:"tags"`
}

func (s *Server) assignTags(r *request) (int, any, error) {
	var in tagsIn
	if err := decode(r.w, r.Request, &in); err != nil {
		return 0, nil, err
	}
	tags := cleanTags(in.Tags)
	b, err := s.ctl.TagTemplate(r.Context(), r.by, templateRef(in.Target), tags)
	return http.StatusCreated, map[string]any{"buildID": b.ID, "tags": tags}, err
}

func (s *Server) removeTags(r *request) (int, any, error) {
	var in tagsIn
	if err := decode(r.w, r.Request, &in); err != nil {
		return 0, nil, err
	}
	name, _, tagged := cutName(in.Name)
	tags := cleanTags(in.Tags)
	switch {
	case tagged:
		return 0, nil, outboard.Errorf(outboard.Invalid, "name must be without a tag: tags says which are taken away")
	case len(tags) == 0:
		return 0, nil, outboard.Errorf(outboard.Invalid, "tags must not be empty")
	case slices.Contains(tags, outboard.DefaultTag): // a name without a tag would mean nothing any more
		return 0, nil, outboard.Errorf(outboard.Invalid, "the tag %s cannot be taken away", outboard.DefaultTag)
	}
	return http.StatusNoContent, nil, s.ctl.UntagTemplate(r.Context(), r.by, name, tags)
}

// uploadLink says whether something was uploaded already, and gives a link to upload it: whoever has the link
// needs no key.
func (s *Server) uploadLink(r *request) (int, any, error) {
	m, present, err := s.ctl.HasTemplateUpload(r.Context(), r.by, templateRef(r.parts[0]), r.parts[1])
	if err != nil {
		return 0, nil, err
	}
	expires, signature := s.ctl.UploadLink(&m, r.parts[1])
	link := url.URL{Scheme: "http", Host: r.Host, Path: fmt.Sprintf("/templates/%s/files/%s", m.ID, r.parts[1]),
		RawQuery: url.Values{"expires": {strconv.FormatInt(expires, 10)}, "signature": {signature}}.Encode()}
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		link.Scheme = "https"
	}
	return http.StatusCreated, map[string]any{"present": present, "url": link.String()}, nil
}

// signedUpload takes what is uploaded by a link.
func (s *Server) signedUpload(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // "", templates, id, files, hash
	if len(parts) != 5 || parts[3] != "files" {
		fail(w, outboard.Errorf(outboard.NotFound, "there is nothing at %s", r.URL.Path))
		return
	}
	q := r.URL.Query()
	expires, _ := strconv.ParseInt(q.Get("expires"), 10, 64) // what is no number was not signed
	body := http.MaxBytesReader(w, r.Body, control.MaxTemplateUpload)
	if err := s.ctl.PutSignedUpload(r.Context(), outboard.TemplateID(parts[2]), parts[4], expires, q.Get("signature"),
		body); err != nil {
		s.stranger(r, "signed upload", err)
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

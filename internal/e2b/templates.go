package e2b

import (
	"bytes"
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

// Templates as the SDKs' Template.build makes them: a build is asked for, files are uploaded by links, the steps are sent, and the status
// is asked for until it is the end.

type buildRequestIn struct {
	Name     string   `json:"name"`
	Alias    string   `json:"alias"` // as older clients call it
	Tags     []string `json:"tags"`
	CPUCount float64  `json:"cpuCount"`
	MemoryMB int64    `json:"memoryMB"`
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
	if in.Name == "" {
		in.Name = in.Alias
	}
	if err := checkSize(in.CPUCount, in.MemoryMB); err != nil {
		return 0, nil, err
	}
	limits := outboard.SandboxLimits{CPUs: in.CPUCount, MemoryBytes: in.MemoryMB << 20}
	m, b, err := s.ctl.RequestTemplateBuild(r.Context(), r.by, strings.TrimPrefix(in.Name, namespace), in.Tags, limits)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusAccepted, buildRequestOut{TemplateID: string(m.ID), BuildID: string(b.ID), Names: []string{namespace + m.Name}, Tags: b.Tags,
		Aliases: []string{m.Name}}, nil
}

// checkSize is SandboxLimits.Check in the words of the wire.
func checkSize(cpus float64, mb int64) error {
	const outside = "%s must be %v to %v, or 0 for the default, not %v"
	if cpus != 0 && !(cpus >= outboard.MinCPUs && cpus <= outboard.MaxCPUs) {
		return outboard.Errorf(outboard.Invalid, outside, "cpuCount", outboard.MinCPUs, outboard.MaxCPUs, cpus)
	}
	if mb != 0 && (mb < outboard.MinMemoryBytes>>20 || mb > outboard.MaxMemoryBytes>>20) {
		return outboard.Errorf(outboard.Invalid, outside, "memoryMB", outboard.MinMemoryBytes>>20, outboard.MaxMemoryBytes>>20, mb)
	}
	return nil
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
		return &control.RegistryLogin{AWS: &control.RegistryKey{Region: in.AWSRegion, ID: outboard.NewSecret(in.AWSKeyID), Key: outboard.NewSecret(in.AWSKey)}}, nil
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
		return s, outboard.Errorf(outboard.Invalid, "a step of type %q is none of RUN, COPY, ENV, WORKDIR and USER", in.Type)
	}
	if len(s.Mode) == 4 { // as the SDKs pad it
		s.Mode = strings.TrimPrefix(s.Mode, "0")
	}
	return s, nil
}

func (s *Server) startBuild(r *request) (int, any, error) {
	var in buildIn
	if err := decode(r.w, r.Request, &in); err != nil {
		return 0, nil, err
	}
	login, err := in.Registry.login()
	if err != nil {
		return 0, nil, err
	}
	p := control.TemplateBuildSpec{Image: in.FromImage, Login: login, From: templateRef(in.FromTemplate), Start: in.Start, Ready: in.Ready, Force: in.Force}
	for i, one := range in.Steps {
		step, err := one.step()
		if err != nil {
			return 0, nil, outboard.Errorf(outboard.KindOf(err), "steps[%d]: %w", i, err)
		}
		p.Steps = append(p.Steps, step)
	}
	_, err = s.ctl.StartTemplateBuild(r.Context(), r.by, r.parts[0], outboard.TemplateBuildID(r.parts[1]), p)
	return http.StatusAccepted, struct{}{}, err
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
	id := outboard.TemplateBuildID(r.parts[1])
	m, b, lines, err := s.ctl.TemplateLog(r.Context(), r.by, r.parts[0], id, from)
	if err != nil {
		return 0, nil, err
	}
	plain := make([]string, len(lines))
	for i, l := range lines {
		plain[i] = l.Message
	}
	out := map[string]any{"templateID": m.ID, "buildID": b.ID, "status": b.State, "logEntries": showLines(lines), "logs": plain}
	if b.State == outboard.TemplateFailed {
		reason := reasonOut{Message: b.Error, LogEntries: []buildLineOut{}}
		if b.ErrorStep > 0 {
			reason.Step = strconv.Itoa(max(0, b.ErrorStep-b.Spec.Inherited))
		}
		out["reason"] = reason
	}
	return http.StatusOK, out, nil
}

func (s *Server) buildLogs(r *request) (int, any, error) {
	_, _, lines, err := s.ctl.TemplateLog(r.Context(), r.by, r.parts[0], outboard.TemplateBuildID(r.parts[1]), 0)
	return http.StatusOK, map[string]any{"logs": showLines(lines)}, err
}

type templateOut struct {
	TemplateID  string    `json:"templateID"`
	BuildID     string    `json:"buildID"`
	CPUCount    int64     `json:"cpuCount"`
	MemoryMB    int64     `json:"memoryMB"`
	DiskSizeMB  int64     `json:"diskSizeMB"`
	Public      bool      `json:"public"`
	Aliases     []string  `json:"aliases"`
	Names       []string  `json:"names"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	SpawnCount  int       `json:"spawnCount"`
	BuildCount  int       `json:"buildCount"`
	EnvdVersion string    `json:"envdVersion"`
	BuildStatus string    `json:"buildStatus"`
}

func (s *Server) showTemplate(r *request, m *outboard.Template) (templateOut, error) {
	out := templateOut{TemplateID: string(m.ID), CPUCount: defaultCPUs, MemoryMB: defaultMemoryMB, DiskSizeMB: defaultDiskMB, Aliases: []string{m.Name},
		Names: []string{namespace + m.Name}, CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt, EnvdVersion: envdVersion}
	_, builds, err := s.ctl.TemplateBuilds(r.Context(), r.by, string(m.ID))
	if err != nil || len(builds) == 0 {
		return out, err
	}
	out.BuildCount, out.BuildID, out.BuildStatus = len(builds), string(builds[0].ID), string(builds[0].State)
	if t, ok := m.Tags[outboard.DefaultTag]; ok {
		out.BuildID = string(t.Build)
	}
	return out, nil
}

func (s *Server) listTemplates(r *request) (int, any, error) {
	all, err := s.ctl.Templates(r.Context(), r.by)
	if err != nil {
		return 0, nil, err
	}
	if all, err = page(r, all, func(m outboard.Template) pageKey { return pageKey{m.CreatedAt, string(m.ID)} }, false); err != nil {
		return 0, nil, err
	}
	out := make([]templateOut, len(all))
	for i := range all {
		if out[i], err = s.showTemplate(r, &all[i]); err != nil {
			return 0, nil, err
		}
	}
	return http.StatusOK, out, nil
}

func (s *Server) getTemplate(r *request) (int, any, error) {
	m, err := s.ctl.Template(r.Context(), r.by, templateRef(r.parts[0]))
	if err != nil {
		return 0, nil, err
	}
	out, err := s.showTemplate(r, &m)
	return http.StatusOK, out, err
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
	b, err := s.ctl.TagTemplate(r.Context(), r.by, strings.TrimPrefix(in.Target, namespace), in.Tags)
	return http.StatusCreated, map[string]any{"buildID": b.ID, "tags": in.Tags}, err
}

func (s *Server) removeTags(r *request) (int, any, error) {
	var in tagsIn
	if err := decode(r.w, r.Request, &in); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, s.ctl.UntagTemplate(r.Context(), r.by, strings.TrimPrefix(in.Name, namespace), in.Tags)
}

func (s *Server) listTags(r *request) (int, any, error) {
	m, err := s.ctl.Template(r.Context(), r.by, templateRef(r.parts[0]))
	if err != nil {
		return 0, nil, err
	}
	type tagOut struct {
		Tag       string    `json:"tag"`
		BuildID   string    `json:"buildID"`
		CreatedAt time.Time `json:"createdAt"`
	}
	out := []tagOut{}
	for tag, t := range m.Tags {
		out = append(out, tagOut{tag, string(t.Build), t.At})
	}
	slices.SortFunc(out, func(a, b tagOut) int { return strings.Compare(a.Tag, b.Tag) })
	return http.StatusOK, out, nil
}

// uploadLink says whether something was uploaded already, and gives a link to upload it: whoever has the link needs no key.
func (s *Server) uploadLink(r *request) (int, any, error) {
	m, present, err := s.ctl.HasTemplateUpload(r.Context(), r.by, r.parts[0], r.parts[1])
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
	if err := s.ctl.PutSignedUpload(r.Context(), outboard.TemplateID(parts[2]), parts[4], expires, q.Get("signature"), body); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

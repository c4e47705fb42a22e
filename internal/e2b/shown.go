package e2b

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Templates as clients are shown them.

type templateOut struct {
	TemplateID    string     `json:"templateID"`
	BuildID       string     `json:"buildID"`
	CPUCount      int64      `json:"cpuCount"`
	MemoryMB      int64      `json:"memoryMB"`
	DiskSizeMB    int64      `json:"diskSizeMB"`
	Public        bool       `json:"public"`
	Aliases       []string   `json:"aliases"`
	Names         []string   `json:"names"`
	CreatedAt     time.Time  `json:"createdAt"`
	UpdatedAt     time.Time  `json:"updatedAt"`
	CreatedBy     *struct{}  `json:"createdBy"` // a person of E2B's, with a number and an address: none here
	LastSpawnedAt *time.Time `json:"lastSpawnedAt"`
	SpawnCount    int        `json:"spawnCount"`
	BuildCount    int        `json:"buildCount"`
	EnvdVersion   string     `json:"envdVersion"`
	BuildStatus   string     `json:"buildStatus"`
}

// withBuildsOut is one template with its newest builds.
type withBuildsOut struct {
	TemplateID    string             `json:"templateID"`
	Public        bool               `json:"public"`
	Aliases       []string           `json:"aliases"`
	Names         []string           `json:"names"`
	CreatedAt     time.Time          `json:"createdAt"`
	UpdatedAt     time.Time          `json:"updatedAt"`
	LastSpawnedAt *time.Time         `json:"lastSpawnedAt"`
	SpawnCount    int                `json:"spawnCount"`
	Builds        []templateBuildOut `json:"builds"`
}

type templateBuildOut struct {
	BuildID     string     `json:"buildID"`
	Status      string     `json:"status"`
	CreatedAt   time.Time  `json:"createdAt"`
	UpdatedAt   time.Time  `json:"updatedAt"`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
	CPUCount    int64      `json:"cpuCount"`
	MemoryMB    int64      `json:"memoryMB"`
	DiskSizeMB  int64      `json:"diskSizeMB"`
	EnvdVersion string     `json:"envdVersion"`
}

// baseBuild is the build of the server's own template, which nobody built.
const baseBuild = "00000000-0000-0000-0000-000000000000"

func showTemplateBuild(b *outboard.TemplateBuild) templateBuildOut {
	l := b.Spec.Limits
	out := templateBuildOut{BuildID: string(b.ID), Status: string(b.State), CreatedAt: b.CreatedAt,
		UpdatedAt: b.CreatedAt, CPUCount: cmp.Or(int64(l.CPUs), defaultCPUs),
		MemoryMB: cmp.Or(l.MemoryBytes>>20, defaultMemoryMB), DiskSizeMB: cmp.Or(l.DiskBytes>>20,
			defaultDiskMB), EnvdVersion: envdVersion}
	if !b.StartedAt.IsZero() {
		out.UpdatedAt = b.StartedAt
	}
	if !b.EndedAt.IsZero() {
		out.UpdatedAt, out.FinishedAt = b.EndedAt, &b.EndedAt
	}
	return out
}

// spawned is how often something was begun with, and when last, as far as that is known: of the sandboxes that
// there are.
type spawned struct {
	n    int
	last *time.Time
}

// spawnedBy counts the sandboxes of each template.
func (s *Server) spawnedBy(r *request) (map[string]spawned, error) {
	boxes, err := s.ctl.Boxes(r.Context(), r.by)
	out := map[string]spawned{}
	for i := range boxes {
		b := &boxes[i]
		of := out[b.Template]
		if of.n++; of.last == nil || b.CreatedAt.After(*of.last) {
			of.last = &b.CreatedAt
		}
		out[b.Template] = of
	}
	return out, err
}

func (s *Server) showTemplate(r *request, m *outboard.Template, of spawned) (templateOut, error) {
	out := templateOut{TemplateID: string(m.ID), CPUCount: defaultCPUs, MemoryMB: defaultMemoryMB,
		DiskSizeMB: defaultDiskMB, Aliases: []string{m.Name},
		Names: []string{namespace +
			m.Name}, CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt, LastSpawnedAt: of.last, SpawnCount: of.n, EnvdVersion: envdVersion}
	_, builds, err := s.ctl.TemplateBuilds(r.Context(), r.by, string(m.ID))
	if err != nil || len(builds) == 0 {
		return out, err
	}
	shown := &builds[0] // or what its name means
	if t, ok := m.Tags[outboard.DefaultTag]; ok {
		if i := slices.IndexFunc(builds, func(b outboard.TemplateBuild) bool { return b.ID == t.Build }); i >= 0 {
			shown = &builds[i]
		}
	}
	b := showTemplateBuild(shown)
	out.BuildCount, out.BuildStatus, out.BuildID = len(builds), string(builds[0].State), b.BuildID
	out.CPUCount, out.MemoryMB, out.DiskSizeMB = b.CPUCount, b.MemoryMB, b.DiskSizeMB
	return out, nil
}

func (s *Server) listTemplates(r *request) (int, any, error) {
	all, err := s.ctl.Templates(r.Context(), r.by)
	if err != nil {
		return 0, nil, err
	}
	if all, err = page(r, all, func(m outboard.Template) pageKey { return pageKey{m.CreatedAt, string(m.ID)} },
		false); err != nil {
		return 0, nil, err
	}
	of, err := s.spawnedBy(r)
	if err != nil {
		return 0, nil, err
	}
	out := make([]templateOut, len(all))
	for i := range all {
		if out[i], err = s.showTemplate(r, &all[i], of[string(all[i].ID)]); err != nil {
			return 0, nil, err
		}
	}
	return http.StatusOK, out, nil
}

// base is the server's own template. It began with the server.
func (s *Server) base() (outboard.Template, []outboard.TemplateBuild) {
	b := outboard.TemplateBuild{ID: baseBuild, State: outboard.TemplateReady, CreatedAt: s.began, EndedAt: s.began}
	return outboard.Template{ID: control.BaseTemplate, Name: control.BaseTemplate, CreatedAt: s.began,
		UpdatedAt: s.began,
		Tags: map[string]outboard.TemplateTag{outboard.DefaultTag: {Build: b.ID,
			At: s.began}}}, []outboard.TemplateBuild{b}
}

// template returns the template that the path names, with its newest builds.
func (s *Server) template(r *request) (outboard.Template, []outboard.TemplateBuild, error) {
	ref := templateRef(r.parts[0])
	if ref == control.BaseTemplate {
		m, builds := s.base()
		return m, builds, nil
	}
	return s.ctl.TemplateBuilds(r.Context(), r.by, ref)
}

func (s *Server) getTemplate(r *request) (int, any, error) {
	m, builds, err := s.template(r)
	if err != nil {
		return 0, nil, err
	}
	of, err := s.spawnedBy(r)
	if err != nil {
		return 0, nil, err
	}
	if builds, err = page(r, builds,
		func(b outboard.TemplateBuild) pageKey { return pageKey{b.CreatedAt, string(b.ID)} }, false); err != nil {
		return 0, nil, err
	}
	out := withBuildsOut{TemplateID: string(m.ID), Public: m.Name == control.BaseTemplate, Aliases: []string{m.Name},
		Names: []string{namespace + m.Name}, CreatedAt: m.CreatedAt,
		UpdatedAt: m.UpdatedAt, LastSpawnedAt: of[string(m.ID)].last, SpawnCount: of[string(m.ID)].n, Builds: make([]templateBuildOut, len(builds))}
	for i := range builds {
		out.Builds[i] = showTemplateBuild(&builds[i])
	}
	return http.StatusOK, out, nil
}

func (s *Server) listTags(r *request) (int, any, error) {
	m, _, err := s.template(r)
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

package e2b

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type snapshotOut struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

// defaultTag ends the ids of snapshots: there is one build of each.
const defaultTag = ":default"

// namespace begins the names of snapshots.
const namespace = "outboard/"

func showSnapshot(n *outboard.BoxSnapshot) snapshotOut {
	if n.Name == "" {
		return snapshotOut{string(n.ID) + defaultTag, []string{}}
	}
	name := namespace + n.Name + defaultTag
	return snapshotOut{name, []string{name}}
}

// templateRef takes the parts off a template's name that mean nothing here.
func templateRef(s string) string {
	return strings.TrimPrefix(strings.TrimSuffix(s, defaultTag), namespace)
}

func (s *Server) snapshot(r *request) (int, any, error) {
	in, err := r.ttl()
	if err != nil {
		return 0, nil, err
	}
	n, err := s.ctl.SnapshotBox(r.Context(), r.by, r.id(), templateRef(in.Name))
	return http.StatusCreated, showSnapshot(&n), err
}

func (s *Server) snapshots(r *request) (int, any, error) {
	all, err := s.ctl.Snapshots(r.Context(), r.by)
	if err != nil {
		return 0, nil, err
	}
	q := r.URL.Query()
	all = slices.DeleteFunc(all, func(n outboard.BoxSnapshot) bool {
		box, name := q.Get("sandboxID"), templateRef(q.Get("name"))
		return box != "" && box != string(n.Box) || name != "" && name != n.Name
	})
	all, err = page(r, all, func(n outboard.BoxSnapshot) pageKey { return pageKey{n.CreatedAt, string(n.ID)} }, false)
	out := make([]snapshotOut, len(all))
	for i := range all {
		out[i] = showSnapshot(&all[i])
	}
	return http.StatusOK, out, err
}

type aliasOut struct {
	TemplateID string `json:"templateID"`
	Public     bool   `json:"public"`
}

// alias says whether there is a template of a name.
func (s *Server) alias(r *request) (int, any, error) {
	name := templateRef(r.parts[0])
	if name == control.BaseTemplate {
		return http.StatusOK, aliasOut{control.BaseTemplate, true}, nil
	}
	n, err := s.ctl.Snapshot(r.Context(), r.by, name)
	if outboard.KindOf(err) != outboard.NotFound {
		return http.StatusOK, aliasOut{TemplateID: string(n.ID)}, err
	}
	name, _, _ = strings.Cut(name, ":")
	m, err := s.ctl.Template(r.Context(), r.by, name)
	return http.StatusOK, aliasOut{TemplateID: string(m.ID)}, err
}

// deleteTemplate removes a snapshot or a template: to clients they are one thing.
func (s *Server) deleteTemplate(r *request) (int, any, error) {
	ref := templateRef(r.parts[0])
	err := s.ctl.DeleteSnapshot(r.Context(), r.by, ref)
	if outboard.KindOf(err) == outboard.NotFound {
		err = s.ctl.DeleteTemplate(r.Context(), r.by, ref)
	}
	return http.StatusNoContent, nil, err
}

type metricOut struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

func showSample(m control.BoxSample) metricOut {
	return metricOut{Timestamp: m.At, TimestampUnix: m.At.Unix(), CPUCount: max(1, int(m.CPUs+0.5)), CPUUsedPct: m.CPUPercent,
		MemUsed: m.Memory, MemTotal: m.MemoryMax, MemCache: m.Cache, DiskUsed: m.Disk, DiskTotal: m.DiskMax}
}

// unix reads a parameter in seconds, or in milliseconds where scale says so.
func (r *request) unix(name string, scale time.Duration) (time.Time, error) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<53 {
		return time.Time{}, outboard.Errorf(outboard.Invalid, "%s must be a time since 1970", name)
	}
	if scale == time.Second {
		return time.Unix(n, 0), nil
	}
	return time.UnixMilli(n), nil
}

func (s *Server) metrics(r *request) (int, any, error) {
	from, err := r.unix("start", time.Second)
	if err != nil {
		return 0, nil, err
	}
	to, err := r.unix("end", time.Second)
	if err != nil {
		return 0, nil, err
	}
	samples, err := s.ctl.BoxSamples(r.Context(), r.by, r.id())
	if err != nil {
		return 0, nil, err
	}
	out := []metricOut{}
	for _, m := range samples {
		if sec := m.At.Truncate(time.Second); !sec.Before(from) && (to.IsZero() || !sec.After(to)) {
			out = append(out, showSample(m))
		}
	}
	return http.StatusOK, out, nil
}

// metricsOf returns the newest sample of each of some boxes.
func (s *Server) metricsOf(r *request) (int, any, error) {
	ids := splitList(r.URL.Query()["sandbox_ids"])
	if len(ids) > 100 {
		return 0, nil, outboard.Errorf(outboard.Invalid, "at most 100 sandboxes at a time")
	}
	out := map[string]metricOut{}
	for _, id := range ids {
		samples, err := s.ctl.BoxSamples(r.Context(), r.by, outboard.BoxID(id))
		if err != nil && outboard.KindOf(err) != outboard.NotFound {
			return 0, nil, err
		}
		if len(samples) > 0 {
			out[id] = showSample(samples[len(samples)-1])
		}
	}
	return http.StatusOK, map[string]any{"sandboxes": out}, nil
}

type logOut struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// lines returns a part of a box's log.
func (s *Server) lines(r *request, cursor string) ([]logOut, error) {
	from, err := r.unix(cursor, time.Millisecond)
	if err != nil {
		return nil, err
	}
	log, err := s.ctl.BoxLog(r.Context(), r.by, r.id())
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	limit := 1000
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n >= 0 {
		limit = min(n, limit)
	}
	back := q.Get("direction") == "backward"
	out := []logOut{}
	for _, l := range log {
		at := l.At.Truncate(time.Millisecond)
		if from.IsZero() || back && !at.After(from) || !back && !at.Before(from) {
			if strings.Contains(l.Message, q.Get("search")) {
				out = append(out, logOut{l.At, l.Message, "info", l.Fields})
			}
		}
	}
	if back {
		slices.Reverse(out)
	}
	return out[:min(limit, len(out))], nil
}

func (s *Server) logs(r *request) (int, any, error) {
	out, err := s.lines(r, "cursor")
	return http.StatusOK, map[string]any{"logs": out}, err
}

func (s *Server) logsV1(r *request) (int, any, error) {
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	entries, err := s.lines(r, "start")
	lines := make([]line, len(entries))
	for i, e := range entries {
		lines[i] = line{e.Timestamp, e.Message}
	}
	return http.StatusOK, map[string]any{"logs": lines, "logEntries": entries}, err
}

package e2b

import (
	"math"
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

func (s *Server) snapshot(r *request) (int, any, error) {
	in, err := r.ttl()
	if err != nil {
		return 0, nil, err
	}
	name, tag, tagged, err := ownName(in.Name)
	if err == nil && tagged && tag != outboard.DefaultTag {
		err = outboard.Errorf(outboard.Unimplemented, "a snapshot has no tag but %s here: leave %q out",
			outboard.DefaultTag, ":"+clip(tag))
	}
	if err != nil {
		return 0, nil, err
	}
	n, err := s.ctl.SnapshotBox(r.Context(), r.by, r.id(), name)
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

// alias says whether there is a template of a name, and with the tag where it is given.
func (s *Server) alias(r *request) (int, any, error) {
	ref := templateRef(r.parts[0])
	if ref == control.BaseTemplate {
		return http.StatusOK, aliasOut{control.BaseTemplate, true}, nil
	}
	n, err := s.ctl.Snapshot(r.Context(), r.by, ref)
	if outboard.KindOf(err) != outboard.NotFound {
		return http.StatusOK, aliasOut{TemplateID: string(n.ID)}, err
	}
	if name, tag, tagged := cutName(r.parts[0]); tagged {
		ref = name + ":" + tag // also the one that a name means anyway: it may have no build yet
	}
	m, err := s.ctl.Template(r.Context(), r.by, ref)
	return http.StatusOK, aliasOut{TemplateID: string(m.ID)}, err
}

// deleteTemplate removes a snapshot or a template: to clients they are one thing.
func (s *Server) deleteTemplate(r *request) (int, any, error) {
	ref := templateRef(r.parts[0])
	if ref == "" {
		return 0, nil, outboard.Errorf(outboard.Invalid, "there is no template without a name")
	}
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
	return metricOut{Timestamp: m.At, TimestampUnix: m.At.Unix(), CPUCount: max(1, int(m.CPUs+0.5)),
		CPUUsedPct: m.CPUPercent,
		MemUsed:    m.Memory, MemTotal: m.MemoryMax, MemCache: m.Cache, DiskUsed: m.Disk, DiskTotal: m.DiskMax}
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
	if len(ids) == 0 || len(ids) > 100 {
		return 0, nil, outboard.Errorf(outboard.Invalid, "sandbox_ids must be the ids of 1 to 100 sandboxes, with "+
			"commas between them, not of %d", len(ids))
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

// maxLines and maxSearch bound what is asked of a box's log at a time, as E2B has it.
const (
	maxLines  = 1000
	maxSearch = 256
)

// lines returns a part of a box's log.
func (s *Server) lines(r *request, cursor string, most int) ([]logOut, error) {
	from, err := r.unix(cursor, time.Millisecond)
	if err != nil {
		return nil, err
	}
	direction, err := r.oneOf("direction", "forward", "backward")
	if err != nil {
		return nil, err
	}
	level, err := r.level()
	if err != nil {
		return nil, err
	}
	limit, err := r.limit(maxLines, most)
	if err != nil {
		return nil, err
	}
	search := r.URL.Query().Get("search")
	if len(search) > maxSearch {
		return nil, outboard.Errorf(outboard.Invalid, "search must have at most %d bytes, not %d", maxSearch,
			len(search))
	}
	log, err := s.ctl.BoxLog(r.Context(), r.by, r.id())
	if err != nil {
		return nil, err
	}
	back := direction == "backward"
	out := []logOut{}
	for _, l := range log {
		at := l.At.Truncate(time.Millisecond)
		if from.IsZero() || back && !at.After(from) || !back && !at.Before(from) {
			if strings.Contains(l.Message, search) && level <= infoLevel {
				out = append(out, logOut{l.At, l.Message, levels[infoLevel], l.Fields})
			}
		}
	}
	if back {
		slices.Reverse(out)
	}
	return out[:min(limit, maxLines, len(out))], nil
}

func (s *Server) logs(r *request) (int, any, error) {
	out, err := s.lines(r, "cursor", maxLines)
	return http.StatusOK, map[string]any{"logs": out}, err
}

func (s *Server) logsV1(r *request) (int, any, error) {
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	entries, err := s.lines(r, "start", math.MaxInt32) // which never had a bound
	lines := make([]line, len(entries))
	for i, e := range entries {
		lines[i] = line{e.Timestamp, e.Message}
	}
	return http.StatusOK, map[string]any{"logs": lines, "logEntries": entries}, err
}

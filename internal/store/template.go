package store

import (
	"context"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
)

// Bounds on templates. Each build has its layers on a disk and its log in the database.
const (
	// MaxTemplates bounds the templates of an organization.
	MaxTemplates = 1000
	// MaxTemplateBuilds bounds the builds of one template that are not over, so that a client in a loop cannot
	// queue up work.
	MaxTemplateBuilds = 10
	// keptBuilds is how many builds of a template that failed, or were never begun, stay to be looked at.
	keptBuilds = 20
	// MaxTemplateFiles bounds the uploads that are remembered for one template; the oldest is forgotten and
	// asked for again.
	MaxTemplateFiles = 1000
)

const templateByNameSQL = `SELECT body, org FROM templates WHERE org = ? AND name = ? AND deleted_at = 0`

const countTemplatesSQL = `SELECT count(*) FROM templates WHERE org = ? AND deleted_at = 0`

const insertTemplateSQL = `INSERT INTO templates (id, org, name, created_at, deleted_at, body) VALUES (?, ?, ?, ?, 0, ?)`

const countOpenBuildsSQL = `SELECT count(*) FROM template_builds WHERE template = ? AND state = 'building'`

const insertTemplateBuildSQL = `INSERT INTO template_builds (id, template, org, host, state, created_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)`

const oldBuildsSQL = `SELECT id FROM template_builds WHERE template = ? AND state IN ('waiting', 'error') ORDER BY created_at DESC, id DESC LIMIT 1000 OFFSET ?`

func scanTemplate(sc scanner) (outboard.Template, error) {
	return scanIn(sc, func(t *outboard.Template) *outboard.OrgID { return &t.Org })
}

func scanTemplateBuild(sc scanner) (outboard.TemplateBuild, error) {
	return scanIn(sc, func(b *outboard.TemplateBuild) *outboard.OrgID { return &b.Org })
}

// AddTemplateBuild inserts a build of the template of m's name, which is m itself when there is none yet, and
// returns the template. Exhausted when there are too many of either. Builds that failed long ago are removed.
func (s *Store) AddTemplateBuild(ctx context.Context, m outboard.Template,
	b outboard.TemplateBuild) (outboard.Template, error) {
	out := m
	err := s.update(ctx, "storing template", func(t tx) error {
		out = m
		have, err := collectTx(ctx, t, scanTemplate, templateByNameSQL+s.d.locking(false), orgText(m.Org), m.Name)
		if err != nil {
			return err
		}
		if len(have) > 0 {
			out = have[0]
		} else if err := insertTemplate(ctx, t, m); err != nil {
			return err
		}
		n, err := collectTx(ctx, t, scanCount, countOpenBuildsSQL, string(out.ID))
		if err != nil {
			return err
		}
		if n[0] >= MaxTemplateBuilds {
			return outboard.Errorf(outboard.Exhausted, "%d builds of template %s are going on, and no more may", n[0],
				m.Name)
		}
		if err := dropOldBuilds(ctx, t, out.ID); err != nil {
			return err
		}
		b.Template = out.ID
		_, err = t.exec(ctx, insertTemplateBuildSQL, string(b.ID), string(b.Template), orgText(m.Org), b.Host,
			string(b.State), micros(b.CreatedAt), mustJSON(b))
		return err
	})
	return out, err
}

func insertTemplate(ctx context.Context, t tx, m outboard.Template) error {
	n, err := collectTx(ctx, t, scanCount, countTemplatesSQL, orgText(m.Org))
	if err != nil {
		return err
	}
	if n[0] >= MaxTemplates {
		return outboard.Errorf(outboard.Exhausted, "there are %d templates, and no more may be", n[0]).
			WithHint("outboard template ls; outboard template rm NAME")
	}
	_, err = t.exec(ctx, insertTemplateSQL, string(m.ID), orgText(m.Org), m.Name, micros(m.CreatedAt), mustJSON(m))
	if t.s.d.unique(err) {
		return ErrDuplicate
	}
	return err
}

const deleteBuildSQL = `DELETE FROM template_builds WHERE id = ?`

const deleteLogSQL = `DELETE FROM template_logs WHERE build = ?`

func dropOldBuilds(ctx context.Context, t tx, id outboard.TemplateID) error {
	old, err := collectTx(ctx, t, scanText[string], oldBuildsSQL, string(id), keptBuilds)
	if err != nil {
		return err
	}
	for _, b := range old {
		if _, err := t.exec(ctx, deleteLogSQL, b); err != nil {
			return err
		}
		if _, err := t.exec(ctx, deleteBuildSQL, b); err != nil {
			return err
		}
	}
	return nil
}

const templateSQL = `SELECT body, org FROM templates WHERE org = ? AND (id = ? OR name = ?) AND deleted_at = 0`

// Template returns an organization's by its id or name.
func (s *Store) Template(ctx context.Context, org outboard.OrgID, ref string) (outboard.Template, error) {
	return one(ctx, s, "template", ref, scanTemplate, templateSQL, orgText(org), ref, ref)
}

// TemplateByID returns one that is not deleted, whosever it is: for who proves by a signature to be meant.
func (s *Store) TemplateByID(ctx context.Context, id outboard.TemplateID) (outboard.Template, error) {
	m, err := one(ctx, s, "template", id, scanTemplate, lockTemplateSQL, string(id))
	if err == nil && !m.DeletedAt.IsZero() {
		err = notFound("template", id)
	}
	return m, err
}

const templatesSQL = `SELECT body, org FROM templates WHERE org = ? AND deleted_at = 0 ORDER BY created_at DESC, id DESC LIMIT ?`

// Templates returns an organization's, newest first.
func (s *Store) Templates(ctx context.Context, org outboard.OrgID) ([]outboard.Template, error) {
	return collect(ctx, s, "listing templates", scanTemplate, templatesSQL, orgText(org), MaxTemplates)
}

const lockTemplateSQL = `SELECT body, org FROM templates WHERE id = ?`

const updateTemplateSQL = `UPDATE templates SET deleted_at = ?, body = ? WHERE id = ?`

// ChangeTemplate changes a template by a function of its newest row, which may run more than once, and returns
// the result. NotFound when it was deleted meanwhile; an error of change changes nothing.
func (s *Store) ChangeTemplate(ctx context.Context, id outboard.TemplateID,
	change func(*outboard.Template) error) (outboard.Template, error) {
	var m outboard.Template
	err := s.update(ctx, "changing template", func(t tx) (err error) {
		m, err = changeTemplate(ctx, t, id, change)
		return err
	})
	return m, err
}

func changeTemplate(ctx context.Context, t tx, id outboard.TemplateID,
	change func(*outboard.Template) error) (outboard.Template, error) {
	list, err := collectTx(ctx, t, scanTemplate, lockTemplateSQL+t.s.d.locking(false), string(id))
	if err != nil {
		return outboard.Template{}, err
	}
	if len(list) == 0 || !list[0].DeletedAt.IsZero() {
		return outboard.Template{}, notFound("template", id)
	}
	m := list[0]
	if err := change(&m); err != nil {
		return m, err
	}
	_, err = t.exec(ctx, updateTemplateSQL, micros(m.DeletedAt), mustJSON(m), string(id))
	return m, err
}

const templateBuildSQL = `SELECT body, org FROM template_builds WHERE id = ?`

// TemplateBuild returns one build.
func (s *Store) TemplateBuild(ctx context.Context, id outboard.TemplateBuildID) (outboard.TemplateBuild, error) {
	return one(ctx, s, "build", id, scanTemplateBuild, templateBuildSQL, string(id))
}

const templateBuildsSQL = `SELECT body, org FROM template_builds WHERE template = ? ORDER BY created_at DESC, id DESC LIMIT ?`

// TemplateBuilds returns the newest builds of a template, newest first.
func (s *Store) TemplateBuilds(ctx context.Context, id outboard.TemplateID,
	most int) ([]outboard.TemplateBuild, error) {
	return collect(ctx, s, "listing builds", scanTemplateBuild, templateBuildsSQL, string(id), most)
}

// The condition on the state is that of the index template_builds_open, word for word.
const openBuildsSQL = `SELECT body, org FROM template_builds WHERE state IN ('building', 'waiting') AND host = ? ORDER BY created_at LIMIT 1000`

// OpenTemplateBuilds returns the builds that a host has begun, or was about to, and not ended.
func (s *Store) OpenTemplateBuilds(ctx context.Context, host string) ([]outboard.TemplateBuild, error) {
	return collect(ctx, s, "listing builds", scanTemplateBuild, openBuildsSQL, host)
}

const updateTemplateBuildSQL = `UPDATE template_builds SET host = ?, state = ?, body = ? WHERE id = ?`

// ChangeTemplateBuild changes a build by a function of its newest row, which may run more than once. When it
// becomes ready by that, its tags mean it from the same moment on, unless its template was deleted.
func (s *Store) ChangeTemplateBuild(ctx context.Context, id outboard.TemplateBuildID,
	change func(*outboard.TemplateBuild) error) (outboard.TemplateBuild, error) {
	var b outboard.TemplateBuild
	err := s.update(ctx, "changing build", func(t tx) error {
		list, err := collectTx(ctx, t, scanTemplateBuild, templateBuildSQL+s.d.locking(false), string(id))
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return notFound("build", id)
		}
		b = list[0]
		before := b.State
		if err := change(&b); err != nil {
			return err
		}
		if _, err = t.exec(ctx, updateTemplateBuildSQL, b.Host, string(b.State), mustJSON(b), string(id)); err != nil {
			return err
		}
		if b.State != outboard.TemplateReady || before == b.State {
			return nil
		}
		_, err = changeTemplate(ctx, t, b.Template, func(m *outboard.Template) error {
			m.UpdatedAt = b.EndedAt
			if m.Tags == nil {
				m.Tags = map[string]outboard.TemplateTag{}
			}
			for _, tag := range b.Tags {
				m.Tags[tag] = outboard.TemplateTag{Build: b.ID, At: b.EndedAt}
			}
			return nil
		})
		if outboard.KindOf(err) == outboard.NotFound {
			return nil
		}
		return err
	})
	return b, err
}

const allTemplatesSQL = `SELECT body, org FROM templates WHERE deleted_at = 0 ORDER BY id`

// TaggedBuilds returns the builds that a tag of some template means, of all organizations.
func (s *Store) TaggedBuilds(ctx context.Context) ([]outboard.TemplateBuild, error) {
	all, err := collect(ctx, s, "listing templates", scanTemplate, allTemplatesSQL)
	if err != nil {
		return nil, err
	}
	var out []outboard.TemplateBuild
	for _, m := range all {
		var ids []outboard.TemplateBuildID
		for _, tag := range m.Tags {
			ids = append(ids, tag.Build)
		}
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			b, err := s.TemplateBuild(ctx, id)
			if err != nil {
				return nil, err
			}
			out = append(out, b)
		}
	}
	return out, nil
}

const insertLineSQL = `INSERT INTO template_logs (build, n, at, level, step, message) VALUES (?, ?, ?, ?, ?, ?)`

// LogTemplateBuild adds lines to the log of a build, the first of which has the number from. Only who builds it
// writes it.
func (s *Store) LogTemplateBuild(ctx context.Context, id outboard.TemplateBuildID, from int,
	lines []outboard.TemplateLine) error {
	return s.update(ctx, "storing the log of a build", func(t tx) error {
		for i, l := range lines {
			if _, err := t.exec(ctx, insertLineSQL, string(id), from+i, micros(l.At), l.Level, l.Step,
				l.Message); err != nil {
				return err
			}
		}
		return nil
	})
}

const logSQL = `SELECT at, level, step, message FROM template_logs WHERE build = ? AND n >= ? ORDER BY n LIMIT ?`

// TemplateLog returns lines of the log of a build from a number on.
func (s *Store) TemplateLog(ctx context.Context, id outboard.TemplateBuildID, from,
	most int) ([]outboard.TemplateLine, error) {
	return collect(ctx, s, "reading the log of a build", scanLine, logSQL, string(id), from, most)
}

const countLinesSQL = `SELECT count(*) FROM template_logs WHERE build = ?`

// TemplateLines returns how many lines the log of a build has.
func (s *Store) TemplateLines(ctx context.Context, id outboard.TemplateBuildID) (int, error) {
	n, err := collect(ctx, s, "reading the log of a build", scanCount, countLinesSQL, string(id))
	if err != nil {
		return 0, err
	}
	return int(n[0]), nil
}

func scanLine(sc scanner) (l outboard.TemplateLine, err error) {
	var at int64
	err = sc.Scan(&at, &l.Level, &l.Step, &l.Message)
	l.At = timeOf(at)
	return l, err
}

const putFileHashSQL = `INSERT INTO template_files (template, hash, digest, size, created_at) VALUES (?, ?, ?, ?, ?)
	ON CONFLICT (template, hash) DO UPDATE SET digest = excluded.digest, size = excluded.size, created_at = excluded.created_at`

const dropFileHashesSQL = `DELETE FROM template_files WHERE template = ? AND hash IN
	(SELECT hash FROM template_files WHERE template = ? ORDER BY created_at DESC, hash LIMIT 1000 OFFSET ?)`

// PutTemplateFile remembers what was uploaded for a template under a name of its client's.
func (s *Store) PutTemplateFile(ctx context.Context, id outboard.TemplateID, hash string, ref outboard.BlobRef,
	at time.Time) error {
	return s.update(ctx, "storing an upload", func(t tx) error {
		if _, err := t.exec(ctx, putFileHashSQL, string(id), hash, ref.Digest, ref.Size, micros(at)); err != nil {
			return err
		}
		_, err := t.exec(ctx, dropFileHashesSQL, string(id), string(id), MaxTemplateFiles)
		return err
	})
}

const fileHashSQL = `SELECT digest, size FROM template_files WHERE template = ? AND hash = ?`

// TemplateFile returns what was uploaded for a template. NotFound if nothing was.
func (s *Store) TemplateFile(ctx context.Context, id outboard.TemplateID, hash string) (outboard.BlobRef, error) {
	return one(ctx, s, "upload", hash,
		func(sc scanner) (r outboard.BlobRef, err error) { return r, sc.Scan(&r.Digest, &r.Size) },
		fileHashSQL, string(id), hash)
}

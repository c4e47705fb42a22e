package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
)

// fromJSON reads what jsonText made.
func fromJSON[T any](text string, v *T) error {
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return outboard.Errorf(outboard.Internal, "decoding a column: %w", err)
	}
	return nil
}

const policyCols = `id, level, target, version, body, created_at, created_by, org`

func scanPolicy(sc scanner) (outboard.Policy, error) {
	var p outboard.Policy
	var created int64
	err := sc.Scan(&p.ID, &p.Level, &p.Target, &p.Version, &p.Text, &created, &p.CreatedBy, &p.Org)
	p.CreatedAt = timeOf(created)
	return p, err
}

const latestPolicySQL = `SELECT ` + policyCols + ` FROM policies WHERE id = ? ORDER BY version DESC LIMIT 1`

const insertPolicySQL = `INSERT INTO policies (` + policyCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

// SavePolicy adds the next version of a policy and returns it; ID and Version of p are set here. expect is the
// version it replaces, -1 for any: Conflict if another one is in force.
func (s *Store) SavePolicy(ctx context.Context, p outboard.Policy, expect int) (outboard.Policy, error) {
	p.ID = policyRow(p.Org, p.Level, p.Target)
	err := s.update(ctx, "storing a policy", func(t tx) error {
		if err := s.d.lockPolicies(ctx, t.Tx); err != nil {
			return err
		}
		last, err := scanPolicy(t.queryRow(ctx, latestPolicySQL, string(p.ID)))
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if expect >= 0 && last.Version != expect {
			return outboard.Errorf(outboard.Conflict, "the policy is at version %d, not %d", last.Version, expect).
				WithHint("read it again")
		}
		p.Version = last.Version + 1
		_, err = t.exec(ctx, insertPolicySQL, string(p.ID), string(p.Level), p.Target, p.Version, p.Text,
			micros(p.CreatedAt), p.CreatedBy, orgText(p.Org))
		if s.d.unique(err) {
			return outboard.Errorf(outboard.Conflict, "somebody else saved the policy at the same time").
				WithHint("read it again")
		}
		return err
	})
	return p, err
}

// policyRow is outboard.PolicyRow for a policy of an organization.
func policyRow(org outboard.OrgID, level outboard.PolicyLevel, target string) outboard.PolicyID {
	if level == outboard.LevelOrganization && org != outboard.DefaultOrg {
		target = string(org)
	}
	return outboard.PolicyRow(level, target)
}

const policyVersionSQL = `SELECT ` + policyCols + ` FROM policies WHERE id = ? AND version = ?`

// Policy returns a version of a policy, 0 = the one in force.
func (s *Store) Policy(ctx context.Context, id outboard.PolicyID, version int) (outboard.Policy, error) {
	if version == 0 {
		return one(ctx, s, "policy", id, scanPolicy, latestPolicySQL, string(id))
	}
	return one(ctx, s, "policy", id, scanPolicy, policyVersionSQL, string(id), version)
}

const policiesSQL = `SELECT ` + policyCols + ` FROM policies AS p
	WHERE version = (SELECT MAX(version) FROM policies AS q WHERE q.id = p.id) AND org = ? AND id > ? ORDER BY id LIMIT ?`

// Policies returns a page of an organization's policies in force, by id.
func (s *Store) Policies(ctx context.Context, p Page) ([]outboard.Policy, error) {
	return collect(ctx, s, "listing policies", scanPolicy, policiesSQL, orgText(p.Org), p.Cursor,
		limitOr(p.Limit, defaultPage))
}

const policyVersionsSQL = `SELECT ` + policyCols + ` FROM policies WHERE id = ? ORDER BY version DESC LIMIT ?`

// PolicyVersions returns the newest versions of a policy, newest first.
func (s *Store) PolicyVersions(ctx context.Context, id outboard.PolicyID, limit int) ([]outboard.Policy, error) {
	return collect(ctx, s, "listing versions of a policy", scanPolicy, policyVersionsSQL, string(id),
		limitOr(limit, defaultPage))
}

const policiesAtSQL = `SELECT ` + policyCols + ` FROM policies AS p
	WHERE version = (SELECT MAX(version) FROM policies AS q WHERE q.id = p.id AND q.created_at <= ?) AND id IN (`

const orgOfSQL = `SELECT org FROM sessions WHERE id = ? UNION ALL SELECT org FROM agents WHERE id = ? LIMIT 1`

const ancestorsSQL = upSQL + `SELECT id FROM up`

// PoliciesFor implements policy.Source. The organization is the session's, the agent's where there is no
// session, else org. What holds for a session holds for its forks, deleted or not: a fork is no way out.
func (s *Store) PoliciesFor(ctx context.Context, org outboard.OrgID, agent outboard.AgentID,
	session outboard.SessionID) ([]outboard.Policy, error) {
	return s.policiesAt(ctx, org, agent, session, math.MaxInt64)
}

// PoliciesAt is PoliciesFor with the versions that were in force at a time.
func (s *Store) PoliciesAt(ctx context.Context, org outboard.OrgID, agent outboard.AgentID, session outboard.SessionID,
	at time.Time) ([]outboard.Policy, error) {
	return s.policiesAt(ctx, org, agent, session, micros(at))
}

func (s *Store) policiesAt(ctx context.Context, org outboard.OrgID, agent outboard.AgentID, session outboard.SessionID,
	at int64) ([]outboard.Policy, error) {
	const doing = "reading policies"
	err := s.queryRow(ctx, orgOfSQL, string(session), string(agent)).Scan(&org)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, s.fail(doing, err)
	}
	up, err := collect(ctx, s, doing, func(sc scanner) (id outboard.SessionID, err error) { return id, sc.Scan(&id) },
		ancestorsSQL, string(session))
	if err != nil {
		return nil, err
	}
	if len(up) == 0 { // there is none such yet
		up = []outboard.SessionID{session}
	}
	ids := []any{string(policyRow(org, outboard.LevelOrganization, "")),
		string(outboard.PolicyRow(outboard.LevelAgent, string(agent)))}
	for _, id := range up {
		ids = append(ids, string(outboard.PolicyRow(outboard.LevelSession, string(id))))
	}
	list, err := collect(ctx, s, doing, scanPolicy, policiesAtSQL+marks(len(ids))+`)`, append([]any{at}, ids...)...)
	slices.SortFunc(list, func(a, b outboard.Policy) int {
		return cmp.Compare(slices.Index(ids, any(string(a.ID))), slices.Index(ids, any(string(b.ID))))
	})
	return list, err
}

const policyRevisionSQL = `SELECT COALESCE(MAX(num), 0) FROM policies`

// PolicyRevision implements policy.Source. It rises with each save, since saves are committed in the order of
// their numbers.
func (s *Store) PolicyRevision(ctx context.Context) (n int64, err error) {
	err = s.queryRow(ctx, policyRevisionSQL).Scan(&n)
	return n, s.fail("reading the revision of the policies", err)
}

const takeRateSQL = `INSERT INTO rates (id, start, n) VALUES (?, ?, 1)
	ON CONFLICT (id) DO UPDATE SET n = CASE WHEN rates.start = excluded.start THEN rates.n + 1 ELSE 1 END, start = excluded.start
	WHERE rates.start <> excluded.start OR rates.n < ?`

// TakeRate implements policy.Source. A counter is one row, so it survives a restart and is shared by all processes.
func (s *Store) TakeRate(ctx context.Context, key string, start time.Time, most int) (bool, error) {
	var n int64
	err := s.update(ctx, "counting", func(t tx) (err error) {
		n, err = t.exec(ctx, takeRateSQL, key, micros(start), most)
		return err
	})
	return n > 0, err
}

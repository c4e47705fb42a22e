package store

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

const orgCols = `id, name, created_at, archived_at`

func scanOrg(sc scanner) (outboard.Organization, error) {
	var o outboard.Organization
	var created, archived int64
	err := sc.Scan(&o.ID, &o.Name, &created, &archived)
	o.CreatedAt, o.ArchivedAt = timeOf(created), timeOf(archived)
	return o, err
}

const insertOrgSQL = `INSERT INTO orgs (` + orgCols + `) VALUES (?, ?, ?, ?)`

// AddOrg inserts an organization. ErrDuplicate if its id or name exists.
func (s *Store) AddOrg(ctx context.Context, o outboard.Organization) error {
	return s.update(ctx, "storing an organization", func(t tx) error {
		_, err := t.exec(ctx, insertOrgSQL, string(o.ID), o.Name, micros(o.CreatedAt), micros(o.ArchivedAt))
		if s.d.unique(err) {
			return ErrDuplicate
		}
		return err
	})
}

const orgSQL = `SELECT ` + orgCols + ` FROM orgs WHERE id = ? OR name = ?`

// Org returns an organization by its id or name.
func (s *Store) Org(ctx context.Context, ref string) (outboard.Organization, error) {
	return one(ctx, s, "organization", ref, scanOrg, orgSQL, ref, ref)
}

// MaxOrgs bounds the organizations of one installation that a list shows.
const MaxOrgs = 10_000

const orgsSQL = `SELECT ` + orgCols + ` FROM orgs ORDER BY created_at, id LIMIT ?`

// Orgs returns the organizations, oldest first.
func (s *Store) Orgs(ctx context.Context) ([]outboard.Organization, error) {
	return collect(ctx, s, "listing organizations", scanOrg, orgsSQL, MaxOrgs)
}

// sharedFor is how long an answer of Shared is believed.
const sharedFor = time.Second

const sharedSQL = `SELECT count(*) FROM (SELECT 1 FROM orgs WHERE archived_at = 0 LIMIT 2) AS two`

// tenancy is the last answer of Shared.
type tenancy struct {
	mu   sync.Mutex
	yes  bool
	seen time.Time // on this host's clock
}

// Shared reports whether more than one organization is there, so that none may have all of what they share. Where the
// database does not answer it is the last answer.
func (s *Store) Shared(ctx context.Context) bool {
	s.tenancy.mu.Lock()
	defer s.tenancy.mu.Unlock()
	if age := time.Since(s.tenancy.seen); age >= 0 && age < sharedFor {
		return s.tenancy.yes
	}
	var n int
	if err := s.queryRow(ctx, sharedSQL).Scan(&n); err == nil {
		s.tenancy.yes, s.tenancy.seen = n > 1, time.Now()
	}
	return s.tenancy.yes
}

const archiveOrgSQL = `UPDATE orgs SET archived_at = ? WHERE id = ? AND archived_at = 0`

// ArchiveOrg ends an organization, and its keys with it; what its logins could be renewed with becomes
// withdrawals. Archiving twice keeps the first time.
func (s *Store) ArchiveOrg(ctx context.Context, id outboard.OrgID, at time.Time) (outboard.Organization, error) {
	err := s.update(ctx, "archiving an organization", func(t tx) error {
		_, err := t.exec(ctx, archiveOrgSQL, micros(at), string(id))
		if err == nil {
			_, err = t.exec(ctx, revokeOrgKeysSQL, micros(at), string(id))
		}
		if err == nil {
			_, err = t.exec(ctx, revokeSSHKeysOrgSQL, micros(at), string(id))
		}
		if err == nil {
			err = s.withdraw(ctx, t, "the organization has ended", renewalsIn, string(id))
		}
		return err
	})
	if err != nil {
		return outboard.Organization{}, err
	}
	return s.Org(ctx, string(id))
}

const userCols = `id, org, email, name, role, issuer, subject, created_at, removed_at`

func scanUser(sc scanner) (outboard.User, error) {
	var u outboard.User
	var created, removed int64
	err := sc.Scan(&u.ID, &u.Org, &u.Email, &u.Name, &u.Role, &u.Issuer, &u.Subject, &created, &removed)
	u.CreatedAt, u.RemovedAt = timeOf(created), timeOf(removed)
	return u, err
}

const insertUserSQL = `INSERT INTO users (` + userCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`

// AddUser inserts a person. ErrDuplicate if the organization has one with this address, or the identity is somebody's.
func (s *Store) AddUser(ctx context.Context, u outboard.User) error {
	return s.update(ctx, "storing a user", func(t tx) error {
		_, err := t.exec(ctx, insertUserSQL, string(u.ID), orgText(u.Org), u.Email, u.Name, u.Role, u.Issuer, u.Subject,
			micros(u.CreatedAt), micros(u.RemovedAt))
		if s.d.unique(err) {
			return ErrDuplicate
		}
		return err
	})
}

const userSQL = `SELECT ` + userCols + ` FROM users WHERE id = ?`

// User returns a person by id, removed ones too.
func (s *Store) User(ctx context.Context, id outboard.UserID) (outboard.User, error) {
	return one(ctx, s, "user", id, scanUser, userSQL, string(id))
}

const usersBySubjectSQL = `SELECT ` + userCols +
	` FROM users WHERE issuer = ? AND subject = ? AND subject <> '' ORDER BY created_at, id LIMIT ?`

// UsersBySubject returns the rows of the person with an identity of an identity provider: one of each
// organization that they are of.
func (s *Store) UsersBySubject(ctx context.Context, issuer, subject string) ([]outboard.User, error) {
	return collect(ctx, s, "reading users", scanUser, usersBySubjectSQL, issuer, subject, defaultPage)
}

const usersByEmailSQL = `SELECT ` + userCols + ` FROM users WHERE email = ? ORDER BY created_at, id LIMIT ?`

// UsersByEmail returns the people with an address, of all organizations.
func (s *Store) UsersByEmail(ctx context.Context, email string) ([]outboard.User, error) {
	return collect(ctx, s, "reading users", scanUser, usersByEmailSQL, email, defaultPage)
}

// Users returns one page of people, newest first; p.IncludeArchived shows the removed ones.
func (s *Store) Users(ctx context.Context, p Page) ([]outboard.User, error) {
	w, err := s.list(ctx, "users", p)
	if err != nil {
		return nil, err
	}
	if !p.IncludeArchived {
		w.add(`removed_at = 0`)
	}
	query := `SELECT ` + userCols + ` FROM users` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing users", scanUser, query, append(w.args, limitOr(p.Limit, defaultPage))...)
}

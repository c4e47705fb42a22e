package api

import (
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Organizations, people and keys: Outboard's own resources, in the wire's style.

type orgOut struct {
	Type       string  `json:"type"` // "organization"
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	CreatedAt  string  `json:"created_at"`
	ArchivedAt *string `json:"archived_at"`
}

func showOrg(o outboard.Organization) orgOut {
	return orgOut{"organization", string(o.ID), o.Name, stamp(o.CreatedAt), stampOrNull(o.ArchivedAt)}
}

type userOut struct {
	Type      string  `json:"type"` // "user"
	ID        string  `json:"id"`
	Org       string  `json:"organization_id"`
	Email     string  `json:"email"`
	Name      string  `json:"name"`
	Role      string  `json:"role"`
	SignedIn  bool    `json:"signed_in"` // at least once
	CreatedAt string  `json:"created_at"`
	RemovedAt *string `json:"removed_at"`
}

func showUser(u outboard.User) userOut {
	return userOut{"user", string(u.ID), string(u.Org), u.Email, u.Name, u.Role, u.Subject != "", stamp(u.CreatedAt),
		stampOrNull(u.RemovedAt)}
}

type keyOut struct {
	Type        string   `json:"type"` // "key"
	ID          string   `json:"id"`
	Org         string   `json:"organization_id"`
	Kind        string   `json:"kind"`
	Name        string   `json:"name"`
	Role        string   `json:"role"`
	Scopes      []string `json:"scopes"`
	User        *string  `json:"user_id"`
	Environment *string  `json:"environment_id"`
	Maker       *string  `json:"maker_id"`  // a person, or a key; null = who runs the server, or a person who signed in
	MadeWith    *string  `json:"made_with"` // the key that it was made with; null = none, or nobody knows
	CreatedAt   string   `json:"created_at"`
	ExpiresAt   *string  `json:"expires_at"`
	RevokedAt   *string  `json:"revoked_at"`
	Secret      string   `json:"secret,omitempty"` // only in the answer that makes it
	// only in the answers that make or renew a login which can be renewed
	RenewAfter *string `json:"renew_after,omitempty"`
	// only in the answer that revokes it: the keys that were made with it, and with those
	Made []keyOut `json:"made,omitempty"`
}

func showKey(k outboard.Key) keyOut {
	out := keyOut{Type: "key", ID: string(k.ID), Org: string(k.Org), Kind: string(k.Kind), Name: k.Name, Role: k.Role,
		Scopes: k.Scopes,
		User:   textOrNull(string(k.User)), Environment: textOrNull(string(k.Environment)), Maker: textOrNull(k.Maker), MadeWith: textOrNull(string(k.MadeWith)),
		CreatedAt: stamp(k.CreatedAt), ExpiresAt: stampOrNull(k.ExpiresAt),
		RevokedAt: stampOrNull(k.RevokedAt), RenewAfter: stampOrNull(k.RenewAfter)}
	if out.Scopes == nil {
		out.Scopes = []string{}
	}
	return out
}

func (s *server) listOrgs(r *request) (any, error) {
	all, err := s.ctl.Orgs(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	data := []orgOut{}
	for _, o := range all {
		data = append(data, showOrg(o))
	}
	return map[string]any{"data": data, "next_page": nil}, nil
}

func (s *server) createOrg(r *request) (any, error) {
	var in struct {
		Name string `json:"name" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	o, err := s.ctl.CreateOrg(r.Context(), r.by, in.Name)
	return showOrg(o), err
}

func (s *server) archiveOrg(r *request) (any, error) {
	o, err := s.ctl.ArchiveOrg(r.Context(), r.by, r.PathValue("organization"))
	return showOrg(o), err
}

func (s *server) listUsers(r *request) (any, error) {
	q, err := r.rows("users", 100, 1000)
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.Users(r.Context(), r.by, q.page)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(u outboard.User) (string, time.Time) { return string(u.ID), u.CreatedAt },
		showUser), nil
}

func userID(r *request) outboard.UserID { return outboard.UserID(r.PathValue("user")) }

func (s *server) getUser(r *request) (any, error) {
	u, err := s.ctl.User(r.Context(), r.by, userID(r))
	return showUser(u), err
}

func (s *server) addUser(r *request) (any, error) {
	var in struct {
		Email string `json:"email" need:"yes"`
		Name  string `json:"name"`
		Role  string `json:"role" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	u, err := s.ctl.AddUser(r.Context(), r.by, in.Email, in.Name, in.Role)
	return showUser(u), err
}

func (s *server) updateUser(r *request) (any, error) {
	var in struct {
		Name *string `json:"name"`
		Role *string `json:"role"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	u, err := s.ctl.UpdateUser(r.Context(), r.by, userID(r), control.UserPatch{Name: in.Name, Role: in.Role})
	return showUser(u), err
}

func (s *server) removeUser(r *request) (any, error) {
	u, err := s.ctl.RemoveUser(r.Context(), r.by, userID(r))
	return showUser(u), err
}

func (s *server) restoreUser(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	u, err := s.ctl.RestoreUser(r.Context(), r.by, userID(r))
	return showUser(u), err
}

func (s *server) listKeys(r *request) (any, error) {
	q, err := r.rows("keys", 100, 1000)
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.Keys(r.Context(), r.by, q.page)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(k outboard.Key) (string, time.Time) { return string(k.ID), k.CreatedAt }, showKey), nil
}

func (s *server) getKey(r *request) (any, error) {
	k, err := s.ctl.Key(r.Context(), r.by, outboard.KeyID(r.PathValue("key")))
	return showKey(k), err
}

func (s *server) createKey(r *request) (any, error) {
	var in struct {
		Name        string   `json:"name" need:"yes"`
		Role        string   `json:"role"`
		Scopes      []string `json:"scopes"`
		User        string   `json:"user_id"`
		Environment string   `json:"environment_id"`
		Expires     int64    `json:"expires_in_seconds"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	k, secret, err := s.ctl.CreateKey(r.Context(), r.by, control.KeyRequest{Name: in.Name, Role: in.Role,
		Scopes: in.Scopes,
		User:   outboard.UserID(in.User), Environment: outboard.EnvironmentID(in.Environment), TTL: boxTTL(in.Expires)})
	out := showKey(k)
	out.Secret = secret
	return out, err
}

func (s *server) revokeKey(r *request) (any, error) {
	made, err := r.flag("made")
	if err != nil {
		return nil, err
	}
	k, others, err := s.ctl.RevokeKey(r.Context(), r.by, outboard.KeyID(r.PathValue("key")), made)
	out := showKey(k)
	for _, o := range others {
		out.Made = append(out.Made, showKey(o))
	}
	return out, err
}

type whoamiOut struct {
	Type string   `json:"type"` // "identity"
	Role string   `json:"role"`
	Org  orgOut   `json:"organization"`
	Key  keyOut   `json:"key"`
	User *userOut `json:"user"`
}

func (s *server) whoami(r *request) (any, error) {
	me, err := s.ctl.Whoami(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	out := whoamiOut{Type: "identity", Role: me.Caller.Role, Org: showOrg(me.Org), Key: showKey(me.Key)}
	if me.User != nil {
		out.User = new(showUser(*me.User))
	}
	return out, nil
}

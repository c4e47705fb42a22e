package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Organization is a tenant of the server.
type Organization struct {
	Type       string     `json:"type"`
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	CreatedAt  time.Time  `json:"created_at"`
	ArchivedAt *time.Time `json:"archived_at"`
}

// User is a person in an organization.
type User struct {
	Type      string     `json:"type"`
	ID        string     `json:"id"`
	Org       string     `json:"organization_id"`
	Email     string     `json:"email"`
	Name      string     `json:"name"`
	Role      string     `json:"role"`
	SignedIn  bool       `json:"signed_in"`
	CreatedAt time.Time  `json:"created_at"`
	RemovedAt *time.Time `json:"removed_at"`
}

// Key is an API key; Secret is set only in the answer that makes it.
type Key struct {
	Type        string     `json:"type"`
	ID          string     `json:"id"`
	Org         string     `json:"organization_id"`
	Kind        string     `json:"kind"`
	Name        string     `json:"name"`
	Role        string     `json:"role"`
	Scopes      []string   `json:"scopes"`
	User        *string    `json:"user_id"`
	Environment *string    `json:"environment_id"`
	Maker       *string    `json:"maker_id"`  // a person, or a key
	MadeWith    *string    `json:"made_with"` // the key that it was made with
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   *time.Time `json:"expires_at"`
	RenewAfter  *time.Time `json:"renew_after"` // of a login that can be renewed, in the answer that makes or renews it
	RevokedAt   *time.Time `json:"revoked_at"`
	Secret      string     `json:"secret,omitempty"`
	// in the answer that revokes it: the living keys that were made with it, and with those
	Made []Key `json:"made,omitempty"`
}

// NewKey asks for a key.
type NewKey struct {
	Name        string   `json:"name"`
	Role        string   `json:"role,omitempty"`
	Scopes      []string `json:"scopes,omitempty"`
	User        string   `json:"user_id,omitempty"`
	Environment string   `json:"environment_id,omitempty"`
	Expires     int64    `json:"expires_in_seconds,omitempty"`
}

// Identity is who the client's key belongs to.
type Identity struct {
	Type string       `json:"type"`
	Role string       `json:"role"`
	Org  Organization `json:"organization"`
	Key  Key          `json:"key"`
	User *User        `json:"user"`
}

const (
	orgsPath  = "/v1/outboard/organizations"
	usersPath = "/v1/outboard/users"
	keysPath  = "/v1/outboard/keys"
)

// Whoami says who the client is.
func (c *Client) Whoami(ctx context.Context) (me Identity, err error) {
	return me, c.call(ctx, http.MethodGet, "/v1/outboard/whoami", nil, nil, &me)
}

// Orgs lists the organizations that the client may know of.
func (c *Client) Orgs(ctx context.Context) iter.Seq2[Organization, error] {
	return pages[Organization](ctx, c, orgsPath, url.Values{})
}

// CreateOrg makes an organization.
func (c *Client) CreateOrg(ctx context.Context, name string) (o Organization, err error) {
	return o, c.call(ctx, http.MethodPost, orgsPath, nil, map[string]string{"name": name}, &o)
}

// ArchiveOrg ends an organization, named by id or name.
func (c *Client) ArchiveOrg(ctx context.Context, ref string) (o Organization, err error) {
	return o, c.call(ctx, http.MethodDelete, orgsPath+"/"+url.PathEscape(ref), nil, nil, &o)
}

// Users lists the people of the organization, newest first.
func (c *Client) Users(ctx context.Context, all bool) iter.Seq2[User, error] {
	return pages[User](ctx, c, usersPath, url.Values{"include_archived": {strconv.FormatBool(all)}})
}

// AddUser adds a person.
func (c *Client) AddUser(ctx context.Context, email, name, role string) (u User, err error) {
	return u, c.call(ctx, http.MethodPost, usersPath, nil, map[string]string{"email": email, "name": name,
		"role": role}, &u)
}

// SetRole gives a person another role.
func (c *Client) SetRole(ctx context.Context, id, role string) (u User, err error) {
	return u, c.call(ctx, http.MethodPost, usersPath+"/"+url.PathEscape(id), nil, map[string]string{"role": role}, &u)
}

// RemoveUser ends everything of a person.
func (c *Client) RemoveUser(ctx context.Context, id string) (u User, err error) {
	return u, c.call(ctx, http.MethodDelete, usersPath+"/"+url.PathEscape(id), nil, nil, &u)
}

// RestoreUser lets a removed person in again.
func (c *Client) RestoreUser(ctx context.Context, id string) (u User, err error) {
	return u, c.call(ctx, http.MethodPost, usersPath+"/"+url.PathEscape(id)+"/restore", nil, nil, &u)
}

// Keys lists the keys that the client may see, newest first.
func (c *Client) Keys(ctx context.Context, all bool) iter.Seq2[Key, error] {
	return pages[Key](ctx, c, keysPath, url.Values{"include_archived": {strconv.FormatBool(all)}})
}

// CreateKey makes a key.
func (c *Client) CreateKey(ctx context.Context, n NewKey) (k Key, err error) {
	return k, c.call(ctx, http.MethodPost, keysPath, nil, n, &k)
}

// Key returns one.
func (c *Client) Key(ctx context.Context, id string) (k Key, err error) {
	return k, c.call(ctx, http.MethodGet, keysPath+"/"+url.PathEscape(id), nil, nil, &k)
}

// RevokeKey ends a key.
func (c *Client) RevokeKey(ctx context.Context, id string) (k Key, err error) {
	return k, c.call(ctx, http.MethodDelete, keysPath+"/"+url.PathEscape(id), nil, nil, &k)
}

// RevokeKeyAndMade ends a key and those that were made with it, and with those.
func (c *Client) RevokeKeyAndMade(ctx context.Context, id string) (k Key, err error) {
	return k, c.call(ctx, http.MethodDelete, keysPath+"/"+url.PathEscape(id), url.Values{"made": {"true"}}, nil, &k)
}

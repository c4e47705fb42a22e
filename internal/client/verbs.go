package client

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// page is one page of any list.
type page[T any] struct {
	Data []T     `json:"data"`
	Next *string `json:"next_page"`
}

// pages walks a list to its end.
func pages[T any](ctx context.Context, c *Client, path string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			var p page[T]
			if err := c.call(ctx, http.MethodGet, path, query, nil, &p); err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, v := range p.Data {
				if !yield(v, nil) {
					return
				}
			}
			if p.Next == nil || *p.Next == "" {
				return
			}
			query.Set("page", *p.Next)
		}
	}
}

// Objects lists what a path of the API lists, as it is there.
func (c *Client) Objects(ctx context.Context, path string) iter.Seq2[map[string]any, error] {
	return pages[map[string]any](ctx, c, path, url.Values{"limit": {"100"}})
}

// Post sends a body to a path of the API and reads the answer into out, if that is not nil.
func (c *Client) Post(ctx context.Context, path string, body, out any) error {
	return c.call(ctx, http.MethodPost, path, nil, body, out)
}

// Delete deletes what is at a path of the API.
func (c *Client) Delete(ctx context.Context, path string) error {
	return c.call(ctx, http.MethodDelete, path, nil, nil, nil)
}

// Agents lists the live agents, newest first.
func (c *Client) Agents(ctx context.Context) iter.Seq2[Agent, error] {
	return pages[Agent](ctx, c, "/v1/agents", url.Values{"limit": {"100"}})
}

// Agent returns one.
func (c *Client) Agent(ctx context.Context, id string) (a Agent, err error) {
	return a, c.call(ctx, http.MethodGet, "/v1/agents/"+url.PathEscape(id), nil, nil, &a)
}

// CreateAgent makes an agent from a body of the wire.
func (c *Client) CreateAgent(ctx context.Context, body any) (a Agent, err error) {
	return a, c.call(ctx, http.MethodPost, "/v1/agents", nil, body, &a)
}

// Environments lists the live environments.
func (c *Client) Environments(ctx context.Context) iter.Seq2[Environment, error] {
	return pages[Environment](ctx, c, "/v1/environments", url.Values{"limit": {"100"}})
}

// CreateEnvironment makes an environment from a body of the wire.
func (c *Client) CreateEnvironment(ctx context.Context, body any) (e Environment, err error) {
	return e, c.call(ctx, http.MethodPost, "/v1/environments", nil, body, &e)
}

// Sessions lists sessions, newest first.
func (c *Client) Sessions(ctx context.Context, archived bool) iter.Seq2[Session, error] {
	return c.SessionsSince(ctx, archived, "", time.Time{})
}

// SessionsSince is Sessions of one agent ("" = all), made at or after a time.
func (c *Client) SessionsSince(ctx context.Context, archived bool, agent string, since time.Time) iter.Seq2[Session,
	error] {
	q := url.Values{"limit": {"100"}, "include[]": {"outboard"}}
	if archived {
		q.Set("include_archived", "true")
	}
	if agent != "" {
		q.Set("agent_id", agent)
	}
	if !since.IsZero() {
		q.Set("created_at[gte]", since.UTC().Format(time.RFC3339Nano))
	}
	return pages[Session](ctx, c, "/v1/sessions", q)
}

// Session returns one.
func (c *Client) Session(ctx context.Context, id string) (s Session, err error) {
	return s, c.call(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(id), url.Values{"include[]": {"outboard"}},
		nil, &s)
}

// CreateSession makes a session.
func (c *Client) CreateSession(ctx context.Context, n NewSession) (s Session, err error) {
	return s, c.call(ctx, http.MethodPost, "/v1/sessions", nil, n, &s)
}

// UpdateSession changes metadata of a session; what the map does not name stays.
func (c *Client) UpdateSession(ctx context.Context, id string, metadata map[string]string) error {
	return c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id), nil, map[string]any{"metadata": metadata},
		nil)
}

// ArchiveSession ends a session for good; its log stays.
func (c *Client) ArchiveSession(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/archive", nil, struct{}{}, nil)
}

// DeleteSession removes a session and everything of it.
func (c *Client) DeleteSession(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/sessions/"+url.PathEscape(id), nil, nil, nil)
}

// Send appends client events.
func (c *Client) Send(ctx context.Context, id string, events ...any) ([]Event, error) {
	var p page[Event]
	err := c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/events", nil,
		map[string]any{"events": events}, &p)
	return p.Data, err
}

// Files lists the files of a session that can be downloaded.
func (c *Client) Files(ctx context.Context, session string) iter.Seq2[File, error] {
	return pages[File](ctx, c, "/v1/files", url.Values{"limit": {"100"}, "scope_id": {session}})
}

// Upload stores a file. The body is streamed, never held in memory, and not repeated.
func (c *Client) Upload(ctx context.Context, name string, r io.Reader) (f File, err error) {
	pr, pw := io.Pipe()
	mw := multipart.NewWriter(pw)
	done := make(chan struct{})
	go func() {
		defer close(done)
		part, err := mw.CreateFormFile("file", name)
		if err == nil {
			_, err = io.Copy(part, r)
		}
		if err == nil {
			err = mw.Close()
		}
		pw.CloseWithError(err)
	}()
	resp, err := c.once(ctx, http.MethodPost, "/v1/files", nil, pr, mw.FormDataContentType())
	pr.CloseWithError(io.ErrClosedPipe)
	<-done
	if err != nil {
		return f, err
	}
	return f, decode(resp, &f)
}

// FileContent returns a file's bytes; the caller closes it.
func (c *Client) FileContent(ctx context.Context, id string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, "/v1/files/"+url.PathEscape(id)+"/content", nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// DeleteFile removes an uploaded file.
func (c *Client) DeleteFile(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/files/"+url.PathEscape(id), nil, nil, nil)
}

// Workspace returns the session's newest saved workspace as a tar; the caller closes it. NotFound while nothing
// was saved.
func (c *Client) Workspace(ctx context.Context, id string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(id)+"/outboard/workspace", nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// SentWorkspace returns what the session's workspace began as, as a tar; the caller closes it. NotFound when
// nothing was sent.
func (c *Client) SentWorkspace(ctx context.Context, id string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(id)+"/outboard/workspace/sent", nil, nil)
	if err != nil || resp.Header.Get("Content-Type") != "application/gzip" {
		return bodyOf(resp), err
	}
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("unpacking what was sent: %w", err), resp.Body.Close())
	}
	return unzipped{z, resp.Body}, nil
}

func bodyOf(resp *http.Response) io.ReadCloser {
	if resp == nil {
		return nil
	}
	return resp.Body
}

// unzipped closes what it reads from.
type unzipped struct {
	io.Reader
	io.Closer
}

// EventQuery selects a part of a session's history.
type EventQuery struct {
	Desc  bool
	Limit int // of one page; 0 = 1000
	Types []string
	Own   bool   // Outboard's own event types as well
	After string // only events processed after this time, RFC 3339
}

func (q EventQuery) values() url.Values {
	v := url.Values{"limit": {"1000"}}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Desc {
		v.Set("order", "desc")
	}
	if q.Own {
		v.Set("include[]", "outboard")
	}
	if q.After != "" {
		v.Set("created_at[gt]", q.After)
	}
	for _, t := range q.Types {
		v.Add("types[]", t)
	}
	return v
}

// Events walks a session's history.
func (c *Client) Events(ctx context.Context, id string, q EventQuery) iter.Seq2[Event, error] {
	return pages[Event](ctx, c, "/v1/sessions/"+url.PathEscape(id)+"/events", q.values())
}

func decode(resp *http.Response, v any) error {
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return fmt.Errorf("reading an answer: %w", err)
	}
	return jsonInto(b, v)
}

// ArchiveAgent ends an agent; its sessions stay.
func (c *Client) ArchiveAgent(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodPost, "/v1/agents/"+url.PathEscape(id)+"/archive", nil, struct{}{}, nil)
}

// DeleteEnvironment removes an environment.
func (c *Client) DeleteEnvironment(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/environments/"+url.PathEscape(id), nil, nil, nil)
}

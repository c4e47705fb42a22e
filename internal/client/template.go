package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Template is a name for prepared layers that sandboxes begin with.
type Template struct {
	Type      string                 `json:"type"`
	ID        string                 `json:"id"`
	Name      string                 `json:"name"`
	Tags      map[string]TemplateTag `json:"tags"`
	CreatedAt time.Time              `json:"created_at"`
	UpdatedAt time.Time              `json:"updated_at"`
}

// TemplateTag is what a tag means, and since when.
type TemplateTag struct {
	BuildID string    `json:"build_id"`
	At      time.Time `json:"tagged_at"`
}

// TemplateBuild is one build of a template.
type TemplateBuild struct {
	Type       string         `json:"type"`
	ID         string         `json:"id"`
	TemplateID string         `json:"template_id"`
	Name       string         `json:"name"`
	State      string         `json:"state"` // waiting, building, ready, error
	Tags       []string       `json:"tags"`
	Image      *string        `json:"image"`
	Steps      int            `json:"steps"`
	Layers     *int           `json:"layers"`
	Error      *TemplateError `json:"error"`
	CreatedAt  time.Time      `json:"created_at"`
	StartedAt  *time.Time     `json:"started_at"`
	EndedAt    *time.Time     `json:"ended_at"`
}

// Over reports whether nothing of the build is going on any more.
func (b *TemplateBuild) Over() bool { return over(b.State) }

func over(state string) bool { return state == "ready" || state == "error" }

// TemplateError is why a build failed.
type TemplateError struct {
	Message string `json:"message"`
	Step    *int   `json:"step"`
}

// TemplateLine is a line of a build's log.
type TemplateLine struct {
	At      time.Time `json:"at"`
	Level   string    `json:"level"`
	Step    *int      `json:"step"`
	Message string    `json:"message"`
}

// TemplateLog is a part of a build's log.
type TemplateLog struct {
	Data     []TemplateLine `json:"data"`
	NextFrom int            `json:"next_from"`
	State    string         `json:"state"`
}

// Over reports whether the log grows no more.
func (l *TemplateLog) Over() bool { return over(l.State) }

func templatePath(ref, rest string) string { return "/v1/templates/" + url.PathEscape(ref) + rest }

// Templates lists the templates, newest first.
func (c *Client) Templates(ctx context.Context) iter.Seq2[Template, error] {
	return pages[Template](ctx, c, "/v1/templates", url.Values{"limit": {"1000"}})
}

// Template returns one by its name or id.
func (c *Client) Template(ctx context.Context, ref string) (t Template, err error) {
	return t, c.call(ctx, http.MethodGet, templatePath(ref, ""), nil, nil, &t)
}

// DeleteTemplate removes a template.
func (c *Client) DeleteTemplate(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, templatePath(ref, ""), nil, nil, nil)
}

// BuildTemplate begins a build from a body of the API.
func (c *Client) BuildTemplate(ctx context.Context, body any) (b TemplateBuild, err error) {
	return b, c.call(ctx, http.MethodPost, "/v1/templates", nil, body, &b)
}

// TemplateBuilds lists the newest builds of a template, newest first.
func (c *Client) TemplateBuilds(ctx context.Context, ref string) iter.Seq2[TemplateBuild, error] {
	return pages[TemplateBuild](ctx, c, templatePath(ref, "/builds"), url.Values{"limit": {"100"}})
}

// TemplateBuild returns one build.
func (c *Client) TemplateBuild(ctx context.Context, ref, build string) (b TemplateBuild, err error) {
	return b, c.call(ctx, http.MethodGet, templatePath(ref, "/builds/"+url.PathEscape(build)), nil, nil, &b)
}

// TemplateLog returns lines of a build's log from a number on.
func (c *Client) TemplateLog(ctx context.Context, ref, build string, from int) (l TemplateLog, err error) {
	return l, c.call(ctx, http.MethodGet, templatePath(ref, "/builds/"+url.PathEscape(build)+"/log"),
		url.Values{"from": {strconv.Itoa(from)}}, nil, &l)
}

package fleet

import (
	"io"
	"net/http"
	"path"
	"strings"
)

// mediaTypes are types by extension. The table is our own because the system's differs from host to host.
var mediaTypes = map[string]string{
	".c": "text/x-c", ".css": "text/css", ".csv": "text/csv", ".diff": "text/x-diff", ".go": "text/x-go",
	".htm": "text/html", ".html": "text/html", ".java": "text/x-java", ".js": "text/javascript", ".log": "text/plain",
	".md": "text/markdown", ".mjs": "text/javascript", ".patch": "text/x-diff", ".py": "text/x-python", ".rs": "text/x-rust",
	".sh": "application/x-sh", ".sql": "application/sql", ".toml": "application/toml", ".ts": "text/x-typescript",
	".tsv": "text/tab-separated-values", ".txt": "text/plain", ".xml": "application/xml", ".yaml": "application/yaml",
	".yml": "application/yaml", ".ipynb": "application/x-ipynb+json", ".json": "application/json",
	".jsonl": "application/jsonl",
	".avif":  "image/avif", ".gif": "image/gif", ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".png": "image/png",
	".svg": "image/svg+xml", ".webp": "image/webp",
	".mp3": "audio/mpeg", ".mp4": "video/mp4", ".wav": "audio/wav", ".webm": "video/webm",
	".docx":    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".pptx":    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	".xlsx":    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	".parquet": "application/vnd.apache.parquet", ".pdf": "application/pdf",
	".gz": "application/gzip", ".tar": "application/x-tar", ".tgz": "application/gzip", ".zip": "application/zip",
}

// mediaType guesses a file's type from its name, else from its first bytes.
func mediaType(name string, head []byte) string {
	if t, ok := mediaTypes[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	t, _, _ := strings.Cut(http.DetectContentType(head), ";")
	return t
}

// sniffer passes bytes on and keeps the first ones.
type sniffer struct {
	w    io.Writer
	head []byte // at most 512 bytes, what http.DetectContentType looks at
}

// Write implements io.Writer.
func (s *sniffer) Write(p []byte) (int, error) {
	if room := 512 - len(s.head); room > 0 {
		s.head = append(s.head, p[:min(room, len(p))]...)
	}
	return s.w.Write(p)
}

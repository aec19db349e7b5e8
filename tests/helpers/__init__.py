"""What several tests share: models, servers, meters, pages."""

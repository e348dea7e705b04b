package stream;

import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.secretsmanager.SecretsManagerClient;

/** AWS Secrets Manager, read with the job's role. */
public final class SecretsManager implements SecretReader {
    @Override
    public String read(String name, String region) {
        try (SecretsManagerClient client = SecretsManagerClient.builder()
                .region(Region.of(region))
                .httpClient(UrlConnectionHttpClient.create())
                .build()) {
            return client.getSecretValue(request -> request.secretId(name)).secretString();
        }
    }
}
